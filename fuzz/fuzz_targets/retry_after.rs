#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keylane_router::testing::fuzz::retry_after(bytes));
