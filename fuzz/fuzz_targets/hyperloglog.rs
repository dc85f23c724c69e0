#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_commands::fuzz::hyperloglog(data));
