#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_storage::fuzz::journal(data));
