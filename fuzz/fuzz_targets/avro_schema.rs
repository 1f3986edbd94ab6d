#![no_main]

mod bounded;

libfuzzer_sys::fuzz_target!(|input: &[u8]| bounded::bounded(tidegate::fuzzing::avro_schema, input));
