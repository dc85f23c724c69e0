#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone::fuzz::proxy_header(data));
