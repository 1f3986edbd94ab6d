//! Compared with an independent implementation; then everything that is no datum.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMITS: Limits = Limits {
    nesting_max: 64,
    items_max: 1_000_000,
    text_bytes_max: 16 << 20,
};

fn schema(json: &Value) -> Schema {
    Schema::parse(&json.to_string(), &[]).unwrap_or_else(|why| panic!("{why}: {json}"))
}

/// What stands at paths, one slot each.
fn extract(plan: &Plan, slots: usize, bytes: &[u8]) -> Result<Vec<Option<Datum<'static>>>, String> {
    let mut found = vec![None; slots];
    plan.extract(bytes, LIMITS, &mut found)?;
    Ok(found
        .into_iter()
        .map(|d| d.map(Datum::into_owned))
        .collect())
}

fn paths(paths: &[&str]) -> Vec<Wanted> {
    let steps = |path: &str| path.split('/').skip(1).map(str::to_owned).collect();
    let wanted = paths.iter().enumerate().map(|(slot, path)| Wanted {
        path: steps(path),
        slot,
    });
    wanted.collect()
}

/// A whole datum as JSON.
fn read_as(writer: &Schema, reader: &Schema, bytes: &[u8]) -> Result<String, String> {
    let plan = Plan::new(writer, reader, &paths(&[""]))?;
    let mut found = extract(&plan, 1, bytes)?;
    let mut json = String::new();
    match found.pop().flatten() {
        None => json.push_str("null"),
        Some(datum) => datum.write_json(&mut json)?,
    }
    Ok(json)
}

fn read(writer: &Value, bytes: &[u8]) -> Result<String, String> {
    let schema = schema(writer);
    read_as(&schema, &schema, bytes)
}

#[track_caller]
fn refused(writer: &Value, bytes: &[u8], why: &str) {
    let found = read(writer, bytes);
    let text = found.expect_err("it was read");
    assert!(text.contains(why), "{text}");
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// The cases that `generate.py` has written.
fn fixtures() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/avro/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn schema_of(fixtures: &Value, of: &Value) -> Schema {
    match of.as_str().and_then(|name| fixtures["schemas"].get(name)) {
        Some(shared) => schema(shared),
        None => schema(of),
    }
}

/// The same, as far as a parser of JSON reads numbers exactly; those that are exact are in `text` digit for digit.
fn assert_same(found: &Value, expected: &Value, text: &str, name: &str) {
    match (found, expected) {
        (Value::Object(found), Value::Object(of)) => {
            if let Some(Value::String(number)) = of.get("$number") {
                panic!("{name}: an object where {number} is expected: {found:?}");
            }
            assert_eq!(found.len(), of.len(), "{name}: {text}");
            for (key, value) in of {
                assert_same(&found[key], value, text, name);
            }
        }
        (Value::Array(found), Value::Array(of)) => {
            assert_eq!(found.len(), of.len(), "{name}: {text}");
            for (found, of) in found.iter().zip(of) {
                assert_same(found, of, text, name);
            }
        }
        (Value::Number(_), Value::Object(of)) => {
            let number = of["$number"].as_str().unwrap();
            assert!(
                text.contains(&format!(":{number}")),
                "{name}: {number} in {text}"
            );
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= b.abs() * 1e-15, "{name}: {a} {b}");
        }
        _ => assert_eq!(found, expected, "{name}"),
    }
}

#[test]
fn what_another_implementation_writes_is_read_as_it_reads_it() {
    let fixtures = fixtures();
    let cases = fixtures["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let writer = schema_of(&fixtures, &case["writer"]);
        let reader = case.get("reader").map_or_else(|| writer.clone(), schema);
        let bytes = hex(case["bytes"].as_str().unwrap());
        match (read_as(&writer, &reader, &bytes), case.get("read")) {
            (Ok(text), Some(expected)) => {
                let found = serde_json::from_str(&text).unwrap();
                assert_same(&found, expected, &text, name);
            }
            (Err(_), None) => {}
            (found, expected) => panic!("{name}: {found:?}, where {expected:?} is expected"),
        }
    }
}

#[test]
fn each_path_alone_gives_what_the_whole_has_there() {
    fn all(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) if !fields.contains_key("$number") => {
                found.push(at.to_owned());
                for (name, value) in fields {
                    all(value, &format!("{at}/{name}"), found);
                }
            }
            Value::Array(items) => {
                found.push(at.to_owned());
                for (index, value) in items.iter().enumerate().take(3) {
                    all(value, &format!("{at}/{index}"), found);
                }
            }
            _ => found.push(at.to_owned()),
        }
    }
    let fixtures = fixtures();
    for case in fixtures["cases"].as_array().unwrap() {
        let Some(expected) = case.get("read") else {
            continue;
        };
        let name = case["name"].as_str().unwrap();
        let writer = schema_of(&fixtures, &case["writer"]);
        let reader = case.get("reader").map_or_else(|| writer.clone(), schema);
        let bytes = hex(case["bytes"].as_str().unwrap());
        let mut pointers = Vec::new();
        all(expected, "", &mut pointers);
        pointers.retain(|pointer| !pointer.contains('~') && pointer.matches('/').count() < 4);
        let check = |wanted: &[&str]| {
            let plan = Plan::new(&writer, &reader, &paths(wanted)).unwrap();
            let found = extract(&plan, wanted.len(), &bytes).unwrap();
            for (pointer, datum) in wanted.iter().zip(found) {
                let mut text = String::from(":");
                match datum {
                    None => text.push_str("null"),
                    Some(datum) => datum.write_json(&mut text).unwrap(),
                }
                let value = serde_json::from_str(&text[1..]).unwrap();
                let place = format!("{name} at {pointer}");
                assert_same(&value, expected.pointer(pointer).unwrap(), &text, &place);
            }
        };
        for pointer in &pointers {
            check(&[pointer]);
        }
        let together: Vec<&str> = pointers.iter().map(String::as_str).collect();
        check(&together);
    }
}

#[test]
fn a_datum_that_is_cut_off_anywhere_or_has_more_behind_it_is_refused() {
    let fixtures = fixtures();
    for case in fixtures["cases"].as_array().unwrap() {
        if case.get("reader").is_some() {
            continue;
        }
        let name = case["name"].as_str().unwrap();
        let writer = schema_of(&fixtures, &case["writer"]);
        let bytes = hex(case["bytes"].as_str().unwrap());
        for length in 0..bytes.len() {
            let cut = read_as(&writer, &writer, &bytes[..length]);
            assert!(cut.is_err(), "{name}: {length} of {} bytes", bytes.len());
        }
        let mut more = bytes.clone();
        more.push(0);
        let why = read_as(&writer, &writer, &more).unwrap_err();
        assert!(why.contains("1 bytes are left over"), "{name}: {why}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let text = json!("string");
    refused(&text, &hex("0661"), "3 bytes are wanted and 1 are left");
    refused(&text, &hex("01"), "a length of -1, at byte 0");
    refused(&text, &hex("02ff"), "a string is not UTF-8, at byte 0");
    refused(&text, &hex("80"), "a number is cut off");
    refused(&text, &hex(""), "a number is cut off, at byte 0");
    refused(
        &json!("long"),
        &hex("ffffffffffffffffff03"),
        "more than 64 bits",
    );
    refused(
        &json!("long"),
        &hex("8080808080808080808000"),
        "more than 64 bits",
    );
    refused(&json!("int"), &hex("808080808020"), "is no int of 32 bits");
    refused(
        &json!("boolean"),
        &hex("02"),
        "0x02 is neither true nor false",
    );
    refused(&json!(["null", "int"]), &hex("04"), "branch 2 of 2");
    refused(&json!(["null", "int"]), &hex("01"), "branch -1 of 2");
    let colour = json!({"type": "enum", "name": "C", "symbols": ["A"]});
    refused(&colour, &hex("02"), "symbol 1 of 1");
    let decimal = json!({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2});
    refused(&decimal, &hex("00"), "a decimal of no bytes");
    let id = json!({"type": "string", "logicalType": "uuid"});
    refused(&id, &hex("0261"), "a string that is no UUID");
    let time = json!({"type": "int", "logicalType": "time-millis"});
    refused(&time, &hex("80b8f252"), "no time of a day");
    refused(&time, &hex("01"), "no time of a day");
    let micros = json!({"type": "long", "logicalType": "timestamp-micros"});
    refused(&micros, &hex("feffffffffffffffff01"), "beyond the times");
    refused(
        &json!("double"),
        &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f],
        "JSON does not have",
    );
}

#[test]
fn extremes_are_read_exactly() {
    let check = |of: Value, bytes: &str, expected: &str| {
        assert_eq!(
            read(&of, &hex(bytes)).as_deref(),
            Ok(expected),
            "{of} {bytes}"
        );
    };
    check(json!("long"), "feffffffffffffffff01", "9223372036854775807");
    check(
        json!("long"),
        "ffffffffffffffffff01",
        "-9223372036854775808",
    );
    check(json!("int"), "ffffffff0f", "-2147483648");
    // More bytes than are needed say the same number.
    check(json!("long"), "828000", "1");
    let decimal = |scale: u32| json!({"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": scale});
    check(decimal(2), "02ff", "-0.01");
    check(decimal(2), "0200", "0.00");
    check(decimal(0), "0280", "-128");
    check(decimal(3), "047fff", "32.767");
    check(decimal(5), "02ff", "-0.00001");
    let widest = format!("24{}", "ff7fffffffffffffffffffffffffffffffff");
    check(
        decimal(0),
        &widest,
        "-43556142965880123323311949751266331066369",
    );
    let micros = |number| json!({"type": "long", "logicalType": number});
    check(
        micros("timestamp-micros"),
        "01",
        "\"1969-12-31T23:59:59.999999Z\"",
    );
    check(
        micros("timestamp-nanos"),
        "01",
        "\"1969-12-31T23:59:59.999999999Z\"",
    );
    check(
        micros("local-timestamp-millis"),
        "01",
        "\"1969-12-31T23:59:59.999\"",
    );
    let duration = json!({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"});
    check(duration, "0100000002000000b90b0000", "\"P1M2DT3.001S\"");
    let id = json!({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"});
    check(
        id,
        "00112233445566778899aabbccddeeff",
        "\"00112233-4455-6677-8899-aabbccddeeff\"",
    );
    let big = json!({"type": "bytes", "logicalType": "big-decimal"});
    check(big.clone(), "06020502", "0.5");
    check(big, "06020503", "5e2");
    check(
        json!({"type": "array", "items": "null"}),
        "0400",
        "[null,null]",
    );
    // A block that says its size.
    check(
        json!({"type": "array", "items": "int"}),
        "0304020400",
        "[1,2]",
    );
    check(
        json!("string"),
        "0e225c0a01c3a4cc80"[..].replace("0e", "10").as_str(),
        "\"\\\"\\\\\\u000a\\u0001ä\u{300}\"",
    );
}

#[test]
fn a_senseless_logical_type_is_the_type_below_it() {
    let check = |of: Value, bytes: &str, expected: &str| {
        assert_eq!(read(&of, &hex(bytes)).as_deref(), Ok(expected), "{of}");
    };
    let scale = json!({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5});
    check(scale, "02ff", "\"/w==\"");
    check(
        json!({"type": "string", "logicalType": "made-up"}),
        "0261",
        "\"a\"",
    );
    check(
        json!({"type": "string", "logicalType": "date"}),
        "0261",
        "\"a\"",
    );
    check(json!({"type": "long", "logicalType": "date"}), "02", "1");
    let short = json!({"type": "fixed", "name": "F", "size": 2, "logicalType": "uuid"});
    check(short, "0000", "\"AAA=\"");
}

#[test]
fn a_logical_type_that_changes_is_what_its_writer_meant() {
    let of = |base: &str, logical: &str| schema(&json!({"type": base, "logicalType": logical}));
    let check = |writer: &Schema, reader: &Schema, expected: Result<&str, &str>| {
        let found = read_as(writer, reader, &hex("02"));
        match expected {
            Ok(text) => assert_eq!(found.as_deref(), Ok(text)),
            Err(why) => assert!(found.unwrap_err().contains(why)),
        }
    };
    let (millis, micros) = (
        of("long", "timestamp-millis"),
        of("long", "timestamp-micros"),
    );
    let long = schema(&json!("long"));
    check(&millis, &micros, Ok("\"1970-01-01T00:00:00.001Z\""));
    check(&long, &micros, Ok("\"1970-01-01T00:00:00.000001Z\""));
    check(&millis, &long, Ok("1"));
    let date = of("int", "date");
    check(
        &date,
        &micros,
        Err("written as date, read as timestamp-micros"),
    );
    check(
        &of("long", "local-timestamp-millis"),
        &micros,
        Err("written as local-timestamp-millis"),
    );
    let cents = json!({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2});
    let mills = json!({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3});
    assert_eq!(
        read_as(&schema(&cents), &schema(&mills), &hex("027b")).as_deref(),
        Ok("1.23")
    );
}

#[test]
fn a_null_default_is_one_whichever_branch_it_is() {
    let old = schema(
        &json!({"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}),
    );
    for branches in [json!(["null", "int"]), json!(["int", "null"])] {
        let reader = json!({"type": "record", "name": "R", "fields": [
            {"name": "n", "type": "string"}, {"name": "age", "type": branches, "default": null}]});
        let found = read_as(&old, &schema(&reader), &hex("0261"));
        assert_eq!(found.as_deref(), Ok(r#"{"n":"a","age":null}"#));
        let with_number = json!({"type": "record", "name": "R", "fields": [
            {"name": "n", "type": "string"}, {"name": "age", "type": branches, "default": 5}]});
        let found = read_as(&old, &schema(&with_number), &hex("0261"));
        assert_eq!(found.as_deref(), Ok(r#"{"n":"a","age":5}"#));
    }
}

#[test]
fn a_schema_that_contradicts_itself_is_refused() {
    let check = |of: Value, why: &str| {
        let text = Schema::parse(&of.to_string(), &[]).unwrap_err();
        assert!(text.contains(why), "{text}");
    };
    check(
        json!({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}),
        "B",
    );
    check(
        json!({"type": "record", "name": "R", "fields": [{"name": "f", "type": "Unknown"}]}),
        "Unknown",
    );
    let of = json!({"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "default": "x"}]});
    // A writer's default is never looked at.
    let why = schema(&of).check_defaults().unwrap_err();
    assert_eq!(
        why,
        "the default of field `f` of record `R`: a string is no int"
    );
    check(
        json!({"type": "record", "name": "R", "fields": [
            {"name": "a", "type": {"type": "fixed", "name": "F", "size": 1}},
            {"name": "b", "type": {"type": "fixed", "name": "F", "size": 2}}]}),
        "`F` is defined twice",
    );
    assert!(Schema::parse("{", &[]).is_err());
}

#[test]
fn named_types_come_from_anywhere_and_may_refer_to_themselves() {
    let flag = r#"{"type": "enum", "name": "x.Flag", "symbols": ["Y", "N"]}"#;
    let pair = r#"{"type": "record", "name": "x.Pair", "fields": [{"name": "a", "type": "x.Flag"}, {"name": "b", "type": "Flag"}]}"#;
    let main = r#"{"type": "record", "name": "Main", "fields": [
        {"name": "c1", "type": "x.Flag"}, {"name": "pair", "type": "x.Pair"}, {"name": "c2", "type": "x.Flag"}]}"#;
    let schema = Schema::parse(main, &[flag, pair]).unwrap();
    let found = read_as(&schema, &schema, &hex("00020002"));
    assert_eq!(
        found.as_deref(),
        Ok(r#"{"c1":"Y","pair":{"a":"N","b":"Y"},"c2":"N"}"#)
    );
    let whole = r#"{"type": "record", "name": "Main", "fields": [
        {"name": "c1", "type": {"type": "enum", "name": "x.Flag", "symbols": ["Y", "N"]}},
        {"name": "pair", "type": {"type": "record", "name": "x.Pair", "fields": [
            {"name": "a", "type": "x.Flag"}, {"name": "b", "type": "Flag"}]}},
        {"name": "c2", "type": "x.Flag"}]}"#;
    let library = apache_avro::Schema::parse_str(whole).unwrap();
    let fingerprint = library.fingerprint::<apache_avro::rabin::Rabin>();
    assert_eq!(schema.fingerprint()[..], fingerprint.bytes);
    // What is inside of another schema may be referred to as well.
    let nested = r#"{"type": "record", "name": "x.Pair", "fields": [{"name": "a", "type":
        {"type": "enum", "name": "Flag", "symbols": ["Y", "N"]}}, {"name": "b", "type": "Flag"}]}"#;
    assert!(Schema::parse(main, &[nested]).is_ok());
    let why = Schema::parse(main, &[pair, flag]).unwrap_err();
    assert!(why.contains("x.Flag"), "{why}");
}

/// As `(nesting, items, bytes of text)`.
fn limited(writer: &Value, bytes: &[u8], limits: (usize, usize, usize), wanted: &[&str]) -> String {
    let schema = schema(writer);
    let plan = Plan::new(&schema, &schema, &paths(wanted)).unwrap();
    let mut found = vec![None; wanted.len()];
    let (nesting_max, items_max, text_bytes_max) = limits;
    let limits = Limits {
        nesting_max,
        items_max,
        text_bytes_max,
    };
    match plan.extract(bytes, limits, &mut found) {
        Ok(()) => "read".to_owned(),
        Err(why) => why,
    }
}

#[test]
fn limits_are_kept_and_named_whether_a_value_is_wanted_or_stepped_over() {
    let list =
        json!({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]});
    let mut bytes = vec![2; 100_000];
    bytes.push(0);
    for wanted in [&["", "/next/next"][..], &["/next/next"], &["/other"], &[]] {
        let why = limited(&list, &bytes, (256, 1_000, 1 << 20), wanted);
        assert!(
            why.contains("nested deeper than 256 (decode.nesting_max)"),
            "{wanted:?}: {why}"
        );
    }
    let nulls = json!({"type": "array", "items": "null"});
    // 2^29 of them in five bytes.
    for wanted in [&[""][..], &["/5"], &[]] {
        let why = limited(
            &nulls,
            &hex("808080800400"),
            (64, 1_000_000, 1 << 20),
            wanted,
        );
        assert!(
            why.contains("more than 1000000 items (decode.items_max)"),
            "{wanted:?}: {why}"
        );
    }
    // 2^40 of them in no bytes at all.
    let pair = |of: Value, depth: u32| {
        json!({"type": "record", "name": format!("L{depth}"), "fields": [
            {"name": "a", "type": of}, {"name": "b", "type": format!("L{}", depth - 1)}]})
    };
    let leaf = json!({"type": "record", "name": "L0", "fields": [{"name": "a", "type": "null"}]});
    let pairs = (1..=40).fold(leaf, pair);
    for wanted in [&[""][..], &["/a/a"], &["/other"], &[]] {
        let why = limited(&pairs, &[], (64, 1_000, 1 << 30), wanted);
        assert!(why.contains("more than 1000 items"), "{wanted:?}: {why}");
    }
    let many = json!({"type": "array", "items": {"type": "array", "items": "null"}});
    let mut bytes = hex("14");
    for _ in 0..10 {
        bytes.extend(hex("80c0c70100"));
    }
    bytes.push(0);
    // Ten times 1,630,208: all of them count.
    let why = limited(&many, &bytes, (64, 2_000_000, 1 << 30), &[""]);
    assert!(why.contains("more than 2000000 items"), "{why}");
    let why = limited(&many, &bytes, (64, 100_000_000, 1 << 20), &[""]);
    assert!(
        why.contains("more than 1048576 bytes as JSON (decode.value_bytes_max)"),
        "{why}"
    );
    let huge = json!({"type": "fixed", "name": "F", "size": 2_000_000_000});
    refused(
        &huge,
        &hex("00"),
        "2000000000 bytes are wanted and 1 are left",
    );
    refused(
        &json!("bytes"),
        &hex("fcffffffffffffffff01"),
        "bytes are wanted",
    );
    let digits = json!({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2});
    let mut long = hex("80897a");
    long.extend(vec![0x55; 1_000_000]);
    refused(&digits, &long, "a decimal of 1000000 bytes");
}

#[test]
fn json_is_written_as_it_would_be_read_or_refused_by_its_path() {
    let entry = schema(&json!({"type": "record", "name": "Entry", "fields": [
        {"name": "account", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": null},
        {"name": "blob", "type": "bytes", "default": "\u{ff}"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    ]}));
    let event = json!({
        "account": "00112233-4455-6677-8899-aabbccddeeff", "amount": "-12.5",
        "at": "1969-12-31T23:59:59.999999Z", "tags": {"a": [1, -2]}, "blob": "AQI=",
    });
    let bytes = encode(&entry, &event).unwrap();
    assert_eq!(
        read_as(&entry, &entry, &bytes).as_deref(),
        Ok(
            r#"{"account":"00112233-4455-6677-8899-aabbccddeeff","amount":-12.50,"at":"1969-12-31T23:59:59.999999Z","day":null,"blob":"AQI=","tags":{"a":[1,-2]}}"#
        )
    );
    let refused = |change: &dyn Fn(&mut Value), why: &str| {
        let mut event = event.clone();
        change(&mut event);
        assert_eq!(encode(&entry, &event).unwrap_err(), why);
    };
    refused(
        &|e| e["amount"] = json!("1.234"),
        "/amount: `1.234` is no decimal with 2 digits after the point",
    );
    for nothing in ["", "-", "."] {
        let why = format!("/amount: `{nothing}` is no decimal with 2 digits after the point");
        refused(&|e| e["amount"] = json!(nothing), &why);
    }
    let float = encode(&schema(&json!("float")), &json!(1e39));
    assert!(float.unwrap_err().contains("no float of 32 bits"));
    refused(
        &|e| e["tags"]["a"][1] = json!("x"),
        "/tags/a/1: a string is no int",
    );
    refused(
        &|e| drop(e.as_object_mut().unwrap().remove("at")),
        "/at: missing, and there is no default",
    );
    refused(
        &|e| e["more"] = json!(1),
        "record `Entry` has no field `more`",
    );
    refused(&|e| e["day"] = json!(true), "/day: a boolean is no date");
    let mut without = event.clone();
    without.as_object_mut().unwrap().remove("blob");
    let bytes = encode(&entry, &without).unwrap();
    assert!(
        read_as(&entry, &entry, &bytes)
            .unwrap()
            .contains(r#""blob":"/w==""#)
    );
}

/// A schema of some depth, and a value that it takes.
fn pair() -> impl Strategy<Value = (Value, Value)> {
    let text = "[a-zä\"\\\\]{0,6}";
    let leaf = prop_oneof![
        Just((json!("null"), json!(null))),
        any::<bool>().prop_map(|v| (json!("boolean"), json!(v))),
        any::<i32>().prop_map(|v| (json!("int"), json!(v))),
        any::<i64>().prop_map(|v| (json!("long"), json!(v))),
        (-1e9..1e9).prop_map(|v: f64| (json!("double"), json!(v))),
        text.prop_map(|v| (json!("string"), json!(v))),
        Just((json!("bytes"), json!("AQID"))),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0_usize..4).prop_map(|((of, value), count)| {
                let items = vec![value; count];
                (json!({"type": "array", "items": of}), json!(items))
            }),
            (inner.clone(), "[a-z]{1,3}").prop_map(|((of, value), key)| {
                (json!({"type": "map", "values": of}), json!({key: value}))
            }),
            proptest::collection::vec(inner, 0..4).prop_map(|fields| {
                let name = format!("R{}", fastrand::u64(..));
                let named = fields.iter().enumerate();
                let types: Vec<Value> = named
                    .clone()
                    .map(|(at, (of, _))| json!({"name": format!("f{at}"), "type": of}))
                    .collect();
                let value: serde_json::Map<String, Value> = named
                    .map(|(at, (_, value))| (format!("f{at}"), value.clone()))
                    .collect();
                (
                    json!({"type": "record", "name": name, "fields": types}),
                    json!(value),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back((of, value) in pair()) {
        let schema = schema(&of);
        let bytes = encode(&schema, &value).unwrap();
        let text = read_as(&schema, &schema, &bytes).unwrap();
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_same(&found, &value, &text, "generated");
        // The library reads the same bytes to their end.
        let library = apache_avro::Schema::parse_str(&of.to_string()).unwrap();
        let mut rest = &bytes[..];
        let reader = apache_avro::reader::datum::GenericDatumReader::builder(&library).build().unwrap();
        prop_assert!(reader.read_value(&mut rest).is_ok());
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn no_bytes_make_reading_panic_or_grow(
        (of, value) in pair(),
        noise in proptest::collection::vec(any::<u8>(), 0..60),
        at in any::<prop::sample::Index>(),
    ) {
        let schema = schema(&of);
        let limits = Limits { nesting_max: 8, items_max: 1_000, text_bytes_max: 10_000 };
        let plan = Plan::new(&schema, &schema, &paths(&["", "/f0", "/f1/0/a"])).unwrap();
        let mut found = vec![None; 3];
        let _ = plan.extract(&noise, limits, &mut found);
        let mut bytes = encode(&schema, &value).unwrap();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes.splice(at..=at, noise.iter().copied().take(3));
        }
        if plan.extract(&bytes, limits, &mut found).is_ok()
            && let Some(Datum::Tree(json)) = &found[0]
        {
            prop_assert!(json.len() <= 10_000);
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok());
        }
    }

    #[test]
    fn no_two_schemas_make_a_plan_panic((a, value) in pair(), (b, _) in pair()) {
        let (writer, reader) = (schema(&a), schema(&b));
        let bytes = encode(&writer, &value).unwrap();
        if let Ok(plan) = Plan::new(&writer, &reader, &paths(&["", "/f0", "/0/f0", "/a"])) {
            let mut found = vec![None; 4];
            let _ = plan.extract(&bytes, LIMITS, &mut found);
        }
    }
}
