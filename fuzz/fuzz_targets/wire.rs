#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| walpost_fuzz::wire(input));
