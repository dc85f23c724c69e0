#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_rdb::fuzz::rdb_file(data));
