//! Records in, columns or a reason out.

use proptest::prelude::*;

use super::*;
use crate::engine::Class;
use crate::projection::{Avro, Batch, Column, ColumnType, HandlerError};
use crate::types::{Header, RecordBuilder};

use ColumnType::{
    Bigint, Boolean, Date, Double, Integer, Jsonb, Numeric, Text, Timestamptz, Uuid as UuidType,
};

/// A projection that decodes and does nothing else.
fn projection(columns: &[(&str, ColumnType, Source, bool)]) -> Projection {
    let handler = crate::sql_projection::SqlProjection {
        applies: Vec::new(),
        emits: Vec::new(),
    };
    let handler = std::sync::Arc::new(handler);
    let mut projection = Projection::with_handler("p", 1, &["t"], Gate::None, handler);
    let column =
        |(name, column_type, source, nullable): &(&str, ColumnType, Source, bool)| Column {
            name: (*name).to_owned(),
            column_type: *column_type,
            source: source.clone(),
            nullable: *nullable,
            default: None,
            unit: None,
        };
    projection.columns = columns.iter().map(column).collect();
    projection
}

fn pointer(text: &str) -> Source {
    Source::parse(text).unwrap()
}

/// The columns, the entity, the sequence and the event id of one record, as text.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    columns: Vec<Option<String>>,
    entity: Option<String>,
    sequence: Option<i64>,
    event_id: Option<String>,
    filtered: bool,
}

fn shown(data: &ColumnData) -> Option<String> {
    match data {
        ColumnData::Bigint(values) => values[0].map(|v| v.to_string()),
        ColumnData::Integer(values) => values[0].map(|v| v.to_string()),
        ColumnData::Double(values) => values[0].map(|v| format!("{v:?}")),
        ColumnData::Boolean(values) => values[0].map(|v| v.to_string()),
        ColumnData::Uuid(values) => values[0].map(|v| v.to_string()),
        ColumnData::Timestamptz(values) => values[0].map(|v| format!("{v:?}")),
        ColumnData::Timestamp(values) => values[0].map(|v| format!("{v:?}")),
        ColumnData::Date(values) => values[0].map(|v| v.to_string()),
        ColumnData::Bytea(values) => values[0].as_ref().map(|v| format!("{v:02x?}")),
        ColumnData::Text(values) => values.get(0).map(str::to_owned),
    }
}

fn decode(projection: &Projection, record: RecordBuilder<'_>) -> Result<Decoded, String> {
    let partition = TopicPartition::new("t", 0);
    let records = [record.build()];
    let decoder = Decoder::new(projection, None);
    let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
    if let Some(rejection) = events.rejected.get(&0) {
        return Err(rejection.detail.clone());
    }
    Ok(Decoded {
        columns: events.columns.iter().map(shown).collect(),
        entity: events.entities.get(0).map(str::to_owned),
        sequence: events.sequences[0],
        event_id: projection
            .event_id
            .as_ref()
            .and_then(|_| events.event_ids.get(0).map(str::to_owned)),
        filtered: events.filtered[0],
    })
}

fn value(payload: &[u8]) -> RecordBuilder<'_> {
    RecordBuilder {
        value: Some(payload),
        ..RecordBuilder::default()
    }
}

/// What becomes of a JSON value in a column of a type; `column `v` (`/v`): ` begins every reason.
#[track_caller]
fn check(column_type: ColumnType, json: &str, expected: Result<&str, &str>) {
    let projection = projection(&[("v", column_type, pointer("/v"), false)]);
    let payload = format!("{{\"v\":{json}}}");
    let found = decode(&projection, value(payload.as_bytes())).map(|d| d.columns[0].clone());
    let expected = match expected {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(why) => Err(format!("column `v` (`/v`): {why}")),
    };
    assert_eq!(found, expected, "{json}");
}

/// What becomes of a payload when the nullable text at a pointer is wanted.
#[track_caller]
fn check_payload(wanted: &str, payload: &[u8], expected: Result<Option<&str>, &str>) {
    let projection = projection(&[("v", Text, pointer(wanted), true)]);
    let found = decode(&projection, value(payload)).map(|d| d.columns[0].clone());
    let expected = expected
        .map(|text| text.map(str::to_owned))
        .map_err(str::to_owned);
    let shown = String::from_utf8_lossy(payload);
    let shown: String = shown.chars().take(80).collect();
    assert_eq!(found, expected, "{shown}");
}

/// The entity, the sequence or the event id at `/v`.
#[track_caller]
fn check_role(role: &str, json: &str, expected: Result<&str, &str>) {
    let mut projection = projection(&[]);
    let source = Some(pointer("/v"));
    match role {
        "entity" => projection.entity = source,
        "sequence" => projection.sequence = source,
        _ => projection.event_id = source,
    }
    let payload = format!("{{\"v\":{json}}}");
    let found = decode(&projection, value(payload.as_bytes())).map(|decoded| match role {
        "entity" => decoded.entity,
        "sequence" => decoded.sequence.map(|n| n.to_string()),
        _ => decoded.event_id,
    });
    let expected = match expected {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(why) => Err(format!("{role} (`/v`): {why}")),
    };
    assert_eq!(found, expected, "{json}");
}

#[test]
fn integers_are_exact_or_refused() {
    check(Bigint, "0", Ok("0"));
    check(Bigint, "-0", Ok("0"));
    check(Bigint, "9223372036854775807", Ok("9223372036854775807"));
    check(Bigint, "-9223372036854775808", Ok("-9223372036854775808"));
    check(
        Bigint,
        "9223372036854775808",
        Err("9223372036854775808 is not an integer of 64 bits"),
    );
    check(Bigint, "1.0", Err("1.0 is not an integer of 64 bits"));
    check(Bigint, "1e3", Err("1e3 is not an integer of 64 bits"));
    check(
        Bigint,
        &"9".repeat(60),
        Err(&format!(
            "{}.. is not an integer of 64 bits",
            "9".repeat(40)
        )),
    );
    check(
        Bigint,
        "\"5\"",
        Err("expected an integer, found the string \"5\""),
    );
    check(Bigint, "true", Err("expected an integer, found true"));
    check(Bigint, "{}", Err("expected an integer, found an object"));
    check(Bigint, "[1]", Err("expected an integer, found an array"));
    check(Integer, "2147483647", Ok("2147483647"));
    check(Integer, "-2147483648", Ok("-2147483648"));
    check(
        Integer,
        "2147483648",
        Err("2147483648 is not an integer of 32 bits"),
    );
}

#[test]
fn a_double_is_finite() {
    check(Double, "1", Ok("1.0"));
    check(Double, "-2.5e-3", Ok("-0.0025"));
    check(Double, "1E300", Ok("1e300"));
    check(Double, "12944889.789207177", Ok("12944889.789207177"));
    check(
        Double,
        "\"2\"",
        Err("expected a number, found the string \"2\""),
    );
    check(Double, "1e400", Err("1e400 is beyond a double precision"));
    check(Double, "-1e400", Err("-1e400 is beyond a double precision"));
    check(Double, "1e-400", Ok("0.0"));
    check(Double, "false", Err("expected a number, found false"));
}

#[test]
fn a_numeric_keeps_every_digit() {
    let digits = "-12345678901234567890123456789012345678901234567890.000000000100";
    check(Numeric, digits, Ok(digits));
    check(Numeric, &format!("\"{digits}\""), Ok(digits));
    check(Numeric, "1e-7", Ok("1e-7"));
    check(Numeric, "1.50E+10", Ok("1.50E+10"));
    check(Numeric, "1e999", Ok("1e999"));
    check(Numeric, "1e131071", Ok("1e131071"));
    check(Numeric, "1e131072", Err("1e131072 is beyond a numeric"));
    check(Numeric, "1e-16383", Ok("1e-16383"));
    check(Numeric, "0.1e-16383", Err("0.1e-16383 is beyond a numeric"));
    check(
        Numeric,
        "1e99999999999999",
        Err("1e99999999999999 is beyond a numeric"),
    );
    check(Numeric, "\"1e+\"", Err("`1e+` is not a number"));
    check(Numeric, "\".5\"", Err("`.5` is not a number"));
    check(Numeric, "\"\"", Err("`` is not a number"));
    check(Numeric, "\"NaN\"", Err("`NaN` is not a number"));
    check(Numeric, "\"1 000\"", Err("`1 000` is not a number"));
    check(Numeric, "\"1.2.3\"", Err("`1.2.3` is not a number"));
    check(Numeric, "[]", Err("expected a string, found an array"));
}

#[test]
fn a_boolean_is_true_or_false() {
    check(Boolean, "true", Ok("true"));
    check(Boolean, "false", Ok("false"));
    check(Boolean, "1", Err("expected true or false, found 1"));
    check(
        Boolean,
        "\"true\"",
        Err("expected true or false, found the string \"true\""),
    );
}

#[test]
fn a_text_is_a_string() {
    check(Text, "\"\"", Ok(""));
    check(Text, "\"grün 💰\"", Ok("grün 💰"));
    check(Text, "17", Err("expected a string, found 17"));
    check(Text, "{\"a\":1}", Err("expected a string, found an object"));
    let long = "x".repeat(100_000);
    check(Text, &format!("\"{long}\""), Ok(&long));
}

#[test]
fn escapes_are_resolved() {
    check(
        Text,
        r#""\"\\\/\b\f\n\r\t\u00e4\ud83d\udcb0""#,
        Ok("\"\\/\u{8}\u{c}\n\r\tä💰"),
    );
    check(Text, r#""\\u0000""#, Ok("\\u0000"));
    check(Text, r#""a\\""#, Ok("a\\"));
}

#[test]
fn what_postgres_cannot_store_as_text_never_reaches_it() {
    let nul = "holds a NUL character, which Postgres cannot store as text";
    check(Text, r#""a\u0000b""#, Err(nul));
    check(
        Text,
        r#""\ud800""#,
        Err("bad string: unexpected end of hex escape at line 1 column 8"),
    );
    check(
        Text,
        r#""\udc00""#,
        Err("bad string: lone leading surrogate in hex escape at line 1 column 7"),
    );
    check(UuidType, r#""\u0000""#, Err(nul));
}

#[test]
fn a_uuid_is_checked() {
    let uuid = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    check(UuidType, &format!("\"{uuid}\""), Ok(uuid));
    check(UuidType, "\"67E5504410B1426F9247BB680E5FE0C8\"", Ok(uuid));
    check(UuidType, "\"67e5\"", Err("`67e5` is not a UUID"));
    check(UuidType, "67", Err("expected a string, found 67"));
}

#[test]
fn a_time_has_a_zone() {
    check(
        Timestamptz,
        "\"2026-01-31T10:30:00.123456+01:00\"",
        Ok("2026-01-31T09:30:00.123456Z"),
    );
    check(
        Timestamptz,
        "\"2026-01-31T09:30:00\"",
        Err("`2026-01-31T09:30:00` is not an RFC 3339 time such as 2026-01-31T09:30:00Z"),
    );
    check(
        Timestamptz,
        "\"2026-02-30T00:00:00Z\"",
        Err("`2026-02-30T00:00:00Z` is not an RFC 3339 time such as 2026-01-31T09:30:00Z"),
    );
    check(
        Timestamptz,
        "1769851800",
        Err("expected a string, found 1769851800"),
    );
}

#[test]
fn a_date_is_a_day_of_the_calendar() {
    check(Date, "\"2024-02-29\"", Ok("2024-02-29"));
    check(
        Date,
        "\"2023-02-29\"",
        Err("`2023-02-29` is not a date such as 2026-01-31"),
    );
    for text in [
        "2026-1-5",
        "2026-01-5 ",
        "+12026-01-01",
        "-200000-01-01",
        "-999-01-01",
    ] {
        let why = format!("`{text}` is not a date such as 2026-01-31");
        check(Date, &format!("\"{text}\""), Err(&why));
    }
    check(
        Date,
        "\"31.01.2026\"",
        Err("`31.01.2026` is not a date such as 2026-01-31"),
    );
}

#[test]
fn jsonb_takes_any_value_as_it_stands() {
    for json in [
        "1",
        "true",
        "\"x\"",
        "[1, 2]",
        "{\"a\": {\"b\": null}}",
        r#""\\u0000""#,
        r#"{"ä":"\ud83d\udcb0"}"#,
        r#"["\u00e4", 1e999]"#,
        r#""\\\\ud800\\""#,
    ] {
        check(Jsonb, json, Ok(json));
    }
    let deep = format!("{}\"\\u00e4\"{}", "[".repeat(500), "]".repeat(500));
    check(Jsonb, &deep, Ok(&deep));
}

#[test]
fn what_postgres_cannot_store_as_jsonb_never_reaches_it() {
    let nul = "holds a NUL character, which jsonb cannot store";
    check(Jsonb, r#""\u0000""#, Err(nul));
    check(Jsonb, r#"{"a\u0000":1}"#, Err(nul));
    check(Jsonb, r#"{"a":["x", "\\\u0000"]}"#, Err(nul));
    // Postgres reads both, although the last one counts.
    check(Jsonb, r#"{"a":"\u0000","a":1}"#, Err(nul));
    let half = "holds half of a surrogate pair, which jsonb cannot store";
    for json in [
        r#""\ud800""#,
        r#""\uDC00""#,
        r#""\ud800\ud800\udc00""#,
        r#""\ud800 \udc00""#,
        r#""\ud800\\udc00""#,
        r#""\ud800ü""#,
        r#"{"\udc00":1}"#,
    ] {
        check(Jsonb, json, Err(half));
    }
}

#[test]
fn missing_and_null_are_the_same_and_need_a_declaration() {
    let why = "column `v` (`/v`): missing or null; declare it nullable if that is allowed";
    for column_type in ColumnType::ALL.map(|(_, t)| t) {
        for payload in ["{}", "{\"v\":null}"] {
            let needed = projection(&[("v", column_type, pointer("/v"), false)]);
            let found = decode(&needed, value(payload.as_bytes()));
            assert_eq!(found.unwrap_err(), why, "{column_type} {payload}");
            let nullable = projection(&[("v", column_type, pointer("/v"), true)]);
            let found = decode(&nullable, value(payload.as_bytes())).unwrap();
            assert_eq!(found.columns, [None], "{column_type} {payload}");
        }
    }
    check_payload("/v", b"{\"v\":\"null\"}", Ok(Some("null")));
}

#[test]
fn pointers_go_into_objects() {
    let payload = r#"{"a":{"b":{"c":"deep"},"x/y":"slash","m~n":"tilde","~1":"both"},"":"empty"}"#;
    let payload = payload.as_bytes();
    check_payload("/a/b/c", payload, Ok(Some("deep")));
    check_payload("/a/x~1y", payload, Ok(Some("slash")));
    check_payload("/a/m~0n", payload, Ok(Some("tilde")));
    check_payload("/a/~01", payload, Ok(Some("both")));
    check_payload("/a/b/d", payload, Ok(None));
    check_payload("/a/b/c/d", payload, Ok(None));
    check_payload("/b", payload, Ok(None));
    check_payload("/A", payload, Ok(None));
    check_payload(
        "/a",
        b"{\"\\u0061\":\"escaped name\"}",
        Ok(Some("escaped name")),
    );
}

#[test]
fn pointers_go_into_arrays() {
    let payload = br#"{"items": [ {"price":"5"}, [ "x" , "y" ], {"0":"name"} ], "none":[]}"#;
    check_payload("/items/0/price", payload, Ok(Some("5")));
    check_payload("/items/1/0", payload, Ok(Some("x")));
    check_payload("/items/1/1", payload, Ok(Some("y")));
    check_payload("/items/2/0", payload, Ok(Some("name")));
    for missing in [
        "/items/3",
        "/items/-",
        "/items/00/price",
        "/items/+0/price",
        "/items/1/01",
        "/items/",
        "/items/price",
        "/items/99999999999999999999999",
        "/none/0",
    ] {
        check_payload(missing, payload, Ok(None));
    }
    check_payload("/v/0", br#"{"v":["first"],"v":[]}"#, Ok(None));
    check_payload(
        "/v/0",
        br#"{"v":["first"],"v":{"0":"last"}}"#,
        Ok(Some("last")),
    );
}

#[test]
fn a_field_and_what_is_in_it_can_both_be_wanted() {
    let projection = projection(&[
        ("whole", Jsonb, pointer("/a"), false),
        ("part", Text, pointer("/a/b"), false),
        ("again", Text, pointer("/a/b"), false),
    ]);
    let decoded = decode(&projection, value(br#"{"a":{"b":"x"}}"#)).unwrap();
    let expected = [r#"{"b":"x"}"#, "x", "x"].map(|v| Some(v.to_owned()));
    assert_eq!(decoded.columns, expected);
}

#[test]
fn the_last_of_two_fields_of_one_name_counts() {
    check_payload("/v", br#"{"v":"first","v":"last"}"#, Ok(Some("last")));
    check_payload("/v", br#"{"v":"first","v":null}"#, Ok(None));
    check_payload("/v/w", br#"{"v":{"w":"first"},"v":{}}"#, Ok(None));
    check_payload("/v/w", br#"{"v":{"w":"first"},"v":5}"#, Ok(None));
}

#[test]
fn only_one_whole_object_is_a_value() {
    let not = |why: &str| format!("the value is not a JSON object: {why}");
    check_payload("/v", b" \t\r\n{\"v\" : \"x\"}\n ", Ok(Some("x")));
    check_payload("/v", b"", Err("the value is empty; expected a JSON object"));
    check_payload(
        "/v",
        b"{\"v\":\"x\"",
        Err(&not("EOF while parsing an object at line 1 column 8")),
    );
    check_payload(
        "/v",
        b"{\"v\":\"x\"}}",
        Err(&not("trailing characters at line 1 column 10")),
    );
    check_payload(
        "/v",
        b"{\"v\":\"x\"} {}",
        Err(&not("trailing characters at line 1 column 11")),
    );
    check_payload(
        "/v",
        b"\xef\xbb\xbf{}",
        Err(&not("expected value at line 1 column 1")),
    );
    check_payload(
        "/v",
        b"[]",
        Err(&not(
            "invalid type: sequence, expected an object at line 1 column 0",
        )),
    );
    check_payload(
        "/v",
        b"null",
        Err(&not(
            "invalid type: null, expected an object at line 1 column 4",
        )),
    );
    check_payload(
        "/v",
        b"{'v':1}",
        Err(&not("key must be a string at line 1 column 2")),
    );
    check_payload(
        "/v",
        b"{\"w\":01}",
        Err(&not("invalid number at line 1 column 7")),
    );
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let unwanted = format!("{{\"w\":{deep},\"v\":\"x\"}}");
    check_payload("/v", unwanted.as_bytes(), Ok(Some("x")));
    let objects = format!("{}1{}", "{\"v\":".repeat(10_000), "}".repeat(10_000));
    check_payload(
        "/v",
        objects.as_bytes(),
        Err("column `v` (`/v`): expected a string, found an object"),
    );
    let open = format!("{{\"v\":{}", "[{\"v\":".repeat(10_000));
    let projection = projection(&[("v", Jsonb, pointer("/v/v/v"), true)]);
    assert!(decode(&projection, value(open.as_bytes())).is_err());
}

#[test]
fn a_field_that_nobody_wants_need_not_be_text() {
    check_payload("/v", b"{\"w\":\"\xff\",\"v\":\"x\"}", Ok(Some("x")));
}

#[test]
fn bytes_that_are_not_text_are_refused_by_name() {
    check_payload(
        "/v",
        b"{\"v\":\"\xff\"}",
        Err("the value is not a JSON object: `v`: invalid unicode code point at line 1 column 7"),
    );
    check_payload(
        "/v/w",
        b"{\"v\":{\"w\":tru}}",
        Err("the value is not a JSON object: `v`: expected ident at line 1 column 14"),
    );
    let mut projection = projection(&[]);
    projection.entity = Some(Source::Key);
    let record = |key| RecordBuilder {
        key,
        ..value(b"{}")
    };
    let why = decode(&projection, record(Some(b"\xff"))).unwrap_err();
    assert_eq!(why, "entity (the record key): not UTF-8 text");
    let why = decode(&projection, record(Some(b""))).unwrap_err();
    assert_eq!(why, "entity (the record key): empty");
    let why = decode(&projection, record(None)).unwrap_err();
    assert_eq!(why, "entity (the record key): missing");
}

#[test]
fn a_value_that_nobody_wants_is_not_read() {
    let mut projection = projection(&[("k", Text, Source::Key, false)]);
    projection.entity = Some(Source::Key);
    let record = RecordBuilder {
        key: Some(b"a-17"),
        ..value(b"not JSON")
    };
    let decoded = decode(&projection, record).unwrap();
    assert_eq!(decoded.entity.as_deref(), Some("a-17"));
    assert_eq!(decoded.columns, [Some("a-17".to_owned())]);
}

#[test]
fn a_tombstone_is_refused_or_filtered_unless_it_is_said_to_be_an_event() {
    let mut projection = projection(&[("v", Text, pointer("/v"), false)]);
    projection.entity = Some(Source::Key);
    let tombstone = || RecordBuilder {
        key: Some(b"a-17"),
        ..RecordBuilder::default()
    };
    let why = decode(&projection, tombstone()).unwrap_err();
    assert_eq!(
        why,
        "the record has no value (a tombstone); set `tombstones = \"filter\"` if it means nothing here, or \"event\""
    );
    projection.tombstones = Some(Tombstones::Filter);
    let decoded = decode(&projection, tombstone()).unwrap();
    assert!(decoded.filtered);
    assert_eq!(decoded.columns, [None]);
    let why = decode(&projection, value(b"")).unwrap_err();
    assert_eq!(why, "the value is empty; expected a JSON object");
}

#[test]
fn an_entity_is_a_string_or_an_integer() {
    check_role("entity", "\"a-17\"", Ok("a-17"));
    check_role("entity", r#""\u00e4""#, Ok("ä"));
    check_role("entity", "17", Ok("17"));
    check_role("entity", "-9223372036854775809", Ok("-9223372036854775809"));
    check_role("entity", &"9".repeat(50), Ok(&"9".repeat(50)));
    for json in ["1.5", "1e3", "-0.0"] {
        let why = format!("expected a string or an integer, found {json}");
        check_role("entity", json, Err(&why));
    }
    check_role("entity", "true", Err("expected a string, found true"));
    check_role("entity", "{}", Err("expected a string, found an object"));
    check_role("entity", "[]", Err("expected a string, found an array"));
    check_role("entity", "\"\"", Err("empty"));
    check_role("entity", "null", Err("missing"));
    check_role(
        "entity",
        r#""a\u0000""#,
        Err("holds a NUL character, which Postgres cannot store as text"),
    );
    check_role("event_id", "\"e-1\"", Ok("e-1"));
    check_role("event_id", "\"\"", Err("empty"));
    check_role("event_id", "null", Err("missing"));
}

#[test]
fn what_is_too_long_to_be_an_index_key_names_nothing() {
    for role in ["entity", "event_id"] {
        let longest = "ä".repeat(500);
        check_role(role, &format!("\"{longest}\""), Ok(&longest));
        for json in [
            format!("\"{longest}a\""),
            format!("\"{}\"", "x".repeat(6000)),
            "9".repeat(1001),
        ] {
            check_role(role, &json, Err("longer than 1000 bytes"));
        }
    }
}

#[test]
fn a_sequence_is_an_integer_or_digits() {
    check_role("sequence", "1", Ok("1"));
    check_role("sequence", "-1", Ok("-1"));
    check_role("sequence", "\"42\"", Ok("42"));
    check_role("sequence", "9223372036854775807", Ok("9223372036854775807"));
    check_role(
        "sequence",
        "9223372036854775808",
        Err("9223372036854775808 is not an integer of 64 bits"),
    );
    check_role(
        "sequence",
        "\"9223372036854775808\"",
        Err("9223372036854775808 is not an integer of 64 bits"),
    );
    check_role(
        "sequence",
        "\"\"",
        Err("expected an integer, found the text ``"),
    );
    check_role("sequence", "1.0", Err("1.0 is not an integer of 64 bits"));
    check_role(
        "sequence",
        "\"x1\"",
        Err("expected an integer, found the text `x1`"),
    );
    check_role("sequence", "true", Err("expected an integer, found true"));
}

#[test]
fn a_sequence_may_be_missing_only_without_a_gate() {
    let mut projection = projection(&[]);
    projection.sequence = Some(pointer("/v"));
    let decoded = decode(&projection, value(b"{}")).unwrap();
    assert_eq!(decoded.sequence, None);
    projection.gate = Gate::Newest;
    let why = decode(&projection, value(b"{\"v\":null}")).unwrap_err();
    assert_eq!(why, "sequence (`/v`): missing");
}

/// A column of a type from a header, which is given as bytes, or not at all.
#[track_caller]
fn check_header(column_type: ColumnType, header: Option<&[u8]>, expected: Result<&str, &str>) {
    let source = Source::Header("h".to_owned());
    let projection = projection(&[("v", column_type, source, false)]);
    let named = |value: Option<&[u8]>| Header {
        name: "h".to_owned(),
        value: value.map(<[u8]>::to_vec),
    };
    let record = RecordBuilder {
        // The last header of a name counts.
        headers: vec![named(Some(b"\xff")), named(header)],
        ..value(b"{}")
    };
    let found = decode(&projection, record).map(|d| d.columns[0].clone());
    let expected = match expected {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(why) => Err(format!("column `v` (header `h`): {why}")),
    };
    assert_eq!(found, expected);
}

#[test]
fn a_header_is_text_that_is_read_as_the_type() {
    check_header(Text, Some(b"x"), Ok("x"));
    check_header(Text, Some("ü".as_bytes()), Ok("ü"));
    check_header(Bigint, Some(b"-5"), Ok("-5"));
    check_header(Boolean, Some(b"true"), Ok("true"));
    check_header(Double, Some(b"2.5"), Ok("2.5"));
    check_header(Numeric, Some(b"1.10"), Ok("1.10"));
    check_header(
        Bigint,
        Some(b"five"),
        Err("expected an integer, found the text `five`"),
    );
    check_header(Jsonb, Some(b"{}"), Err("a key or header cannot be jsonb"));
    check_header(
        Text,
        Some(b"\0"),
        Err("holds a NUL character, which Postgres cannot store as text"),
    );
    check_header(Text, Some(b"\xff"), Err("not UTF-8 text"));
    check_header(
        Text,
        None,
        Err("missing or null; declare it nullable if that is allowed"),
    );
}

#[test]
fn a_record_that_is_at_fault_is_named_by_its_place() {
    let projection = projection(&[("v", Bigint, pointer("/v"), false)]);
    let (a, b) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
    let record = |payload: &'static [u8]| value(payload).build();
    let good = [record(b"{\"v\":1}"), record(b"{\"v\":2}")];
    let bad = [record(b"{\"v\":3}"), record(b"{\"v\":\"x\"}")];
    let decoder = Decoder::new(&projection, None);
    let events = decoder.decode(&[(&a, &good[..]), (&b, &bad[..])]).unwrap();
    assert_eq!(events.rejected.keys().copied().collect::<Vec<_>>(), [3]);
    let refs: Vec<_> = events.shares.iter().map(|s| s.refs.clone()).collect();
    assert_eq!(refs, [0..2, 2..4]);
}

#[test]
fn nothing_of_a_record_is_left_for_the_next() {
    let projection = projection(&[
        ("v", Text, pointer("/v"), true),
        ("w", Text, pointer("/o/w"), true),
    ]);
    let partition = TopicPartition::new("t", 0);
    let records: Vec<_> = [&br#"{"v":"x","o":{"w":"y"}}"#[..], b"{}", br#"{"o":5}"#]
        .map(|payload| value(payload).build())
        .into();
    let decoder = Decoder::new(&projection, None);
    let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
    for column in &events.columns {
        let ColumnData::Text(texts) = column else {
            panic!("a text column")
        };
        assert!(texts.get(0).is_some());
        assert_eq!((texts.get(1), texts.get(2)), (None, None));
    }
}

/// Every type once, nullable, at names that the generated payloads use.
fn everything() -> Projection {
    let names = ["a", "b/0", "c", "/a/b", "/a/b/a", "/x~1y", "/a/1", "/ü"];
    let types = ColumnType::ALL.iter().map(|(_, t)| *t);
    let columns: Vec<_> = types
        .zip(names.iter().cycle())
        .map(|(t, name)| {
            (
                "v",
                t,
                pointer(&format!("/{}", name.trim_start_matches('/'))),
                true,
            )
        })
        .collect();
    let mut projection = projection(&columns);
    projection.sequence = Some(pointer("/s"));
    projection
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|v| v.to_string()),
        any::<i64>().prop_map(|v| v.to_string()),
        any::<u64>().prop_map(|v| v.to_string()),
        any::<i8>().prop_map(|v| v.to_string()),
        proptest::num::f64::NORMAL.prop_map(|v| serde_json::to_string(&v).unwrap()),
        any::<String>().prop_map(|v| serde_json::to_string(&v).unwrap()),
        "[a-z ä]{0,4}".prop_map(|v| serde_json::to_string(&v).unwrap()),
    ]
}

/// The text of an object, in which names repeat.
fn object() -> impl Strategy<Value = String> {
    fn fields(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec!["a", "b", "x/y", "m~n", "ü", "0"]);
        let field = (name, value).prop_map(|(name, value)| format!("\"{name}\" : {value}"));
        proptest::collection::vec(field, 0..5).prop_map(|f| format!("{{ {} }}", f.join(",")))
    }
    let nested = scalar().prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3)
                .prop_map(|v| format!("[{}]", v.join(", "))),
            fields(inner),
        ]
    });
    fields(nested)
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&everything(), value(&payload));
    }

    #[test]
    fn nothing_like_json_makes_decoding_panic(payload in r#"\{("[absxü]" ?: ?)?[\[\]{}",:0-9eE.+\-u\\abs ]{0,40}\}?"#) {
        let _ = decode(&everything(), value(payload.as_bytes()));
    }

    #[test]
    fn a_value_is_what_a_json_tree_would_hold(
        payload in object(),
        wanted in prop::sample::select(vec![
            "/a", "/b", "/a/b", "/a/b/a", "/x~1y", "/a/m~0n", "/ü/ü", "/a/0", "/b/1", "/a/0/b", "/b/0/0", "/a/1/0/a", "/0/0", "/a/00", "/a/-",
        ]),
    ) {
        let tree: serde_json::Value = serde_json::from_str(&payload).unwrap();
        let expected = tree.pointer(wanted).filter(|v| !v.is_null());
        let found = |column_type| {
            let projection = projection(&[("v", column_type, pointer(wanted), true)]);
            decode(&projection, value(payload.as_bytes())).map(|d| d.columns[0].clone())
        };
        match found(Jsonb) {
            Ok(None) => prop_assert!(expected.is_none()),
            Ok(Some(json)) => {
                let value: serde_json::Value = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(Some(&value), expected);
            }
            Err(why) => prop_assert!(why.contains("NUL"), "{}", why),
        }
        if let Some(expected) = expected {
            let text = expected.as_str().filter(|text| !text.contains('\0')).map(str::to_owned);
            prop_assert_eq!(found(Text).ok().flatten(), text);
            let integer = expected.as_i64().map(|n| n.to_string());
            prop_assert_eq!(found(Bigint).ok().flatten(), integer);
            // serde_json rounds some numbers in their last digit; we do not.
            let double: Option<f64> = found(Double).ok().flatten().map(|n| n.parse().unwrap());
            prop_assert_eq!(double.is_some(), expected.is_number());
            if let (Some(ours), Some(theirs)) = (double, expected.as_f64()) {
                prop_assert!((ours - theirs).abs() <= theirs.abs() * 1e-15, "{} {}", ours, theirs);
            }
            let boolean = expected.as_bool().map(|b| b.to_string());
            prop_assert_eq!(found(Boolean).ok().flatten(), boolean);
        }
    }
}

/// What is known of a record that is no event: its entity where that stands outside, and a place in every column.
#[test]
fn a_record_that_cannot_be_read_keeps_its_place_and_its_entity() {
    let mut projection = projection(&[("v", Bigint, pointer("/v"), false)]);
    projection.entity = Some(Source::Key);
    projection.event_id = Some(pointer("/id"));
    let partition = TopicPartition::new("t", 0);
    let record = |value: Option<&'static [u8]>| {
        RecordBuilder {
            key: Some(b"k"),
            value,
            ..RecordBuilder::default()
        }
        .build()
    };
    let records = [
        record(Some(br#"{"id":"a","v":1}"#)),
        record(Some(br#"{"id":"b","v":"#)),
        record(None),
        record(Some(br#"{"v":1}"#)),
        record(Some(br#"{"id":"e","v":5}"#)),
    ];
    let decoder = Decoder::new(&projection, None);
    let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
    assert_eq!(
        events.rejected.keys().copied().collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!((0..5).all(|event| events.readable_entity(event) == Some("k")));
    assert_eq!(events.event_ids.get(4), Some("e"));
    assert_eq!(events.columns[0].len(), 5);
    let ColumnData::Bigint(values) = &events.columns[0] else {
        panic!("{:?}", events.columns[0]);
    };
    assert_eq!((values[0], values[4]), (Some(1), Some(5)));
}

#[test]
fn what_decides_about_an_event_may_not_be_there_twice() {
    let mut projection = projection(&[("v", Text, pointer("/v"), true)]);
    projection.entity = Some(pointer("/o/id"));
    projection.sequence = Some(pointer("/seq"));
    let refused = |payload: &str, why: &str| {
        let found = decode(&projection, value(payload.as_bytes())).unwrap_err();
        assert!(found.contains(why), "{found}");
    };
    refused(r#"{"o":{"id":"a"},"seq":1,"seq":2}"#, "`seq` occurs twice");
    refused(r#"{"o":{"id":"a","id":"b"},"seq":1}"#, "`id` occurs twice");
    refused(r#"{"o":{"id":"a"},"seq":1,"o":{}}"#, "`o` occurs twice");
    // Even if they say the same, one of them in other letters.
    refused(
        r#"{"o":{"id":"a"},"seq":null,"s\u0065q":null}"#,
        "`seq` occurs twice",
    );
    let others = r#"{"v":"x","o":{"id":"a","x":1,"x":2},"v":"y","seq":1}"#;
    assert_eq!(
        decode(&projection, value(others.as_bytes()))
            .unwrap()
            .columns,
        [Some("y".to_owned())]
    );
}

#[test]
fn json_is_utf8_and_nothing_stands_around_it() {
    let projection = projection(&[("n", Text, pointer("/n"), true)]);
    let latin = [b"{\"n\":\"".as_slice(), b"\xe9", b"\"}"].concat();
    assert!(
        decode(&projection, value(&latin))
            .unwrap_err()
            .contains("invalid unicode code point")
    );
    let bom = [b"\xef\xbb\xbf".as_slice(), br#"{"n":"a"}"#].concat();
    assert!(decode(&projection, value(&bom)).is_err());
    let why = decode(&projection, value(br#"{"n":"a"} x"#)).unwrap_err();
    assert!(why.contains("trailing characters"), "{why}");
    assert!(decode(&projection, value(b" {\"n\":\"a\"}\n")).is_ok());
    let deep = format!("{{\"x\":{},\"n\":\"a\"}}", "[".repeat(200_000));
    assert!(decode(&projection, value(deep.as_bytes())).is_err());
    let deep = format!(
        "{{\"x\":{}{},\"n\":\"a\"}}",
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    let _ = decode(&projection, value(deep.as_bytes()));
}

#[test]
fn a_value_that_is_too_long_is_not_even_looked_at() {
    let mut projection = projection(&[("v", Text, pointer("/v"), true)]);
    projection.limits.bytes_max = 10;
    assert!(decode(&projection, value(br#"{"v":"abc"}"#)).is_err());
    let why = decode(&projection, value(&[b'x'; 11])).unwrap_err();
    assert_eq!(
        why,
        "the value has 11 bytes; 10 are allowed (decode.value_bytes_max)"
    );
    assert!(decode(&projection, value(br#"{"v":"ab"}"#)).is_ok());
}

fn keyed<'a>(key: &'a [u8], payload: Option<&'a [u8]>) -> RecordBuilder<'a> {
    RecordBuilder {
        key: Some(key),
        value: payload,
        ..RecordBuilder::default()
    }
}

#[test]
fn a_part_of_the_key_may_be_wanted_of_an_event_and_of_a_tombstone() {
    let mut wanted = projection(&[
        ("v", Bigint, pointer("/v"), true),
        ("k", Text, Source::parse("key:/b/c").unwrap(), true),
    ]);
    wanted.entity = Some(Source::parse("key:/id").unwrap());
    wanted.tombstones = Some(Tombstones::Event);
    let check =
        |wanted: &Projection, key: &[u8], payload: Option<&[u8]>, expected: Result<&str, &str>| {
            let found = decode(wanted, keyed(key, payload)).map(|d| (d.entity, d.columns));
            match expected {
                Ok(entity) => assert_eq!(found.unwrap().0.as_deref(), Some(entity)),
                Err(why) => assert_eq!(found.unwrap_err(), why),
            }
        };
    check(&wanted, br#"{"id": 7}"#, Some(br#"{"v": 1}"#), Ok("7"));
    check(&wanted, br#"{"id": "a", "b": {"c": "x"}}"#, None, Ok("a"));
    // As Debezium writes keys with their schema.
    check(
        &wanted,
        br#"{"schema": {}, "payload": {"id": 7}}"#,
        None,
        Ok("7"),
    );
    let why = "entity (`key:/id`): missing";
    check(&wanted, br#"{"Id": 7}"#, None, Err(why));
    let why = "entity (`key:/id`): the key is not a JSON object: expected value at line 1 column 1";
    check(&wanted, b"plain", Some(b"{}"), Err(why));
    let why = "entity (`key:/id`): the key is not a JSON object: `id` occurs twice";
    let twice = decode(&wanted, keyed(br#"{"id": 1, "id": 2}"#, None)).unwrap_err();
    assert!(twice.starts_with(why), "{twice}");

    // A key that can be read names the entity of a value that cannot.
    let decoder = Decoder::new(&wanted, None);
    let partition = TopicPartition::new("t", 0);
    let records = [keyed(br#"{"id": 7}"#, Some(b"[")).build()];
    let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
    assert_eq!(events.entities.get(0), Some("7"));
    assert!(events.rejected.contains_key(&0));
}

#[test]
fn a_key_in_avro_is_read_by_its_own_schema() {
    let schema = |text: &str| Arc::new(crate::avro::Schema::parse(text, &[]).unwrap());
    let key = schema(r#"{"type":"record","name":"K","fields":[{"name":"id","type":"long"}]}"#);
    let value = schema(r#"{"type":"record","name":"R","fields":[{"name":"v","type":"long"}]}"#);
    let format = |schema: &Arc<crate::avro::Schema>| {
        Avro::new(Arc::clone(schema), Framing::Raw(Arc::clone(schema)))
    };
    let mut wanted = projection(&[("v", Bigint, pointer("/v"), false)]);
    wanted.entity = Some(Source::parse("key:/id").unwrap());
    wanted.format = Format::Avro(Avro {
        key: Some(Box::new(format(&key))),
        ..format(&value)
    });
    let found = decode(&wanted, keyed(b"\x0e", Some(b"\x0a"))).unwrap();
    assert_eq!(found.entity.as_deref(), Some("7"));
    assert_eq!(found.columns, [Some("5".to_owned())]);
    let why = decode(&wanted, keyed(b"\x0e\0", Some(b"\x0a"))).unwrap_err();
    assert!(
        why.starts_with(
            "entity (`key:/id`): the key: not what its schema writes: 1 bytes are left over"
        ),
        "{why}"
    );
}

#[test]
fn headers_that_are_too_large_are_an_error_of_a_record_that_holds_up_its_entity() {
    let header = |name: &str, value: Option<&[u8]>| Header {
        name: name.to_owned(),
        value: value.map(<[u8]>::to_vec),
    };
    let fits = [header("h", Some(b"a")), header("12345678", None)];
    let too_large = [&fits[..], &[header("x", None)]].concat();
    let partition = TopicPartition::new("t", 0);
    let found = |entity: &str, columns: &[(&str, ColumnType, Source, bool)], headers: &[Header]| {
        let mut projection = projection(columns);
        projection.entity = Some(Source::parse(entity).unwrap());
        projection.limits.headers_bytes_max = 10;
        let record = RecordBuilder {
            headers: headers.to_vec(),
            ..value(br#"{"e":"b"}"#)
        };
        let records = [record.build()];
        let decoder = Decoder::new(&projection, None);
        let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
        let why = events.rejected.get(&0).map(|why| why.detail.clone());
        (events.entities.get(0).map(str::to_owned), why)
    };
    let why = "the headers have 11 bytes; 10 are allowed (decode.headers_bytes_max)";
    let refused = |entity: &str| (Some(entity.to_owned()), Some(why.to_owned()));
    assert_eq!(found("header:h", &[], &fits), (Some("a".to_owned()), None));
    assert_eq!(found("header:h", &[], &too_large), refused("a"));
    let column = [("h", Text, Source::parse("header:h").unwrap(), false)];
    assert_eq!(found("/e", &column, &too_large), refused("b"));
    // Where none are read a record has them only if another one was parked before.
    assert_eq!(found("/e", &[], &too_large), (Some("b".to_owned()), None));
}

#[test]
fn a_default_stands_for_what_is_missing_and_a_unit_for_what_a_number_counts() {
    let mut wanted = projection(&[
        ("n", Bigint, pointer("/n"), false),
        ("j", Jsonb, pointer("/j"), false),
        ("at", Timestamptz, pointer("/at"), true),
        ("local", ColumnType::Timestamp, pointer("/local"), true),
        ("day", Date, pointer("/day"), true),
    ]);
    wanted.columns[0].default = Some("7".to_owned());
    wanted.columns[1].default = Some("[]".to_owned());
    wanted.columns[2].unit = Some(crate::projection::TimeUnit::Micros);
    wanted.columns[3].unit = Some(crate::projection::TimeUnit::Millis);
    wanted.columns[4].unit = Some(crate::projection::TimeUnit::Days);
    let shown = |payload: &str| {
        let columns = decode(&wanted, value(payload.as_bytes())).map(|d| d.columns)?;
        let texts = columns
            .into_iter()
            .map(|c| c.unwrap_or_else(|| "-".to_owned()));
        Ok::<_, String>(texts.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(
        shown(r#"{"j":null,"at":-1,"local":-1500,"day":-719162}"#).as_deref(),
        Ok("7 [] 1969-12-31T23:59:59.999999Z 1969-12-31T23:59:58.500 0001-01-01")
    );
    assert_eq!(
        shown(r#"{"n":1,"j":{},"at":"2026-01-31T09:30:00Z","local":"2026-01-31T09:30:00","day":"2026-01-31"}"#).as_deref(),
        Ok("1 {} 2026-01-31T09:30:00Z 2026-01-31T09:30:00 2026-01-31")
    );
    assert!(
        shown(r#"{"at":9223372036854775807}"#)
            .unwrap_err()
            .contains("beyond")
    );
    assert!(
        shown(r#"{"at":1.5}"#)
            .unwrap_err()
            .contains("1.5 is not an integer of 64 bits")
    );
}

/// A CloudEvent, with headers.
fn cloud_event(
    projection: &Projection,
    headers: &[(&str, &str)],
    payload: Option<&[u8]>,
) -> Result<Decoded, String> {
    let headers = headers.iter().map(|(name, value)| Header {
        name: (*name).to_owned(),
        value: Some(value.as_bytes().to_vec()),
    });
    let record = RecordBuilder {
        value: payload,
        headers: headers.collect(),
        ..RecordBuilder::default()
    };
    decode(projection, record)
}

#[test]
fn a_cloud_event_is_the_same_in_binary_and_in_structured_mode() {
    let mut wanted = projection(&[
        ("v", Bigint, pointer("/o/v"), true),
        ("kind", Text, Source::parse("ce:type").unwrap(), false),
        ("at", Timestamptz, Source::parse("ce:time").unwrap(), true),
        (
            "trace",
            Text,
            Source::parse("ce:traceparent").unwrap(),
            true,
        ),
        (
            "number",
            Bigint,
            Source::parse("ce:sequence").unwrap(),
            true,
        ),
    ]);
    wanted.format = Format::CloudEvents;
    wanted.entity = Some(Source::parse("ce:subject").unwrap());
    wanted.sequence = Some(Source::parse("ce:sequence").unwrap());
    wanted.event_id = Some(Source::parse("ce:id").unwrap());
    let headers = [
        ("ce_specversion", "1.0"),
        ("ce_id", "1"),
        ("ce_source", "/shop"),
        ("ce_type", "placed"),
        ("ce_subject", "o-1"),
        ("ce_sequence", "17"),
        ("ce_time", "2026-01-31T09:30:00Z"),
        ("traceparent", "00-x"),
        ("content-type", "application/json; charset=utf-8"),
    ];
    let binary = cloud_event(&wanted, &headers, Some(br#"{"o":{"v":5}}"#)).unwrap();
    let whole = br#"{"specversion":"1.0","id":"1","source":"/shop","type":"placed","subject":"o-1","sequence":"17",
        "time":"2026-01-31T09:30:00Z","traceparent":"00-x","datacontenttype":"application/json","data":{"o":{"v":5}}}"#;
    let structured = [(
        "content-type",
        "application/cloudevents+json; charset=utf-8",
    )];
    let structured = cloud_event(&wanted, &structured, Some(whole)).unwrap();
    assert_eq!(binary, structured);
    assert_eq!(binary.event_id.as_deref(), Some("/shop 1"));
    assert_eq!(
        (binary.entity.as_deref(), binary.sequence),
        (Some("o-1"), Some(17))
    );
    assert_eq!(binary.columns[0].as_deref(), Some("5"));
    assert_eq!(binary.columns[3].as_deref(), Some("00-x"));
    // An event without data is no tombstone.
    let empty = cloud_event(&wanted, &headers[..8], None).unwrap();
    assert_eq!(
        (empty.columns[0].clone(), empty.columns[1].as_deref()),
        (None, Some("placed"))
    );

    let refused = |headers: &[(&str, &str)], payload: Option<&[u8]>, why: &str| {
        let found = cloud_event(&wanted, headers, payload).unwrap_err();
        assert!(found.contains(why), "{found}");
    };
    refused(&[], Some(b"{}"), "no CloudEvent: it has neither");
    refused(&[], None, "a tombstone");
    refused(
        &[("content-type", "application/cloudevents+avro")],
        Some(b"x"),
        "only application/cloudevents+json is read",
    );
    refused(
        &[("ce_specversion", "1.0"), ("content-type", "text/csv")],
        Some(b"x"),
        "its data is text/csv, not JSON",
    );
    refused(
        &headers[..2],
        Some(b"{}"),
        "entity (attribute `subject`): missing",
    );
    refused(
        &[("content-type", "application/cloudevents+json")],
        Some(br#"{"id":"1","id":"2"}"#),
        "`id` occurs twice",
    );
}

/// A table's projection: its columns, its op, and the LSN as the sequence.
fn mirror() -> Projection {
    let mut wanted = projection(&[
        ("id", Bigint, pointer("/id"), false),
        ("name", Text, pointer("/name"), false),
        ("op", Text, Source::parse("envelope:/op").unwrap(), false),
    ]);
    wanted.format = Format::Debezium(None);
    wanted.gate = Gate::Newest;
    wanted.entity = Some(pointer("/id"));
    wanted.change_defaults();
    wanted
}

#[test]
fn a_change_event_is_its_row_inside_of_a_payload_or_not() {
    let check = |event: &str, expected: Result<(&str, Option<&str>, i64), &str>| {
        let whole = format!(
            r#"{{"schema":{{"type":"struct","op":"x","payload":{{}}}},"payload":{event}}}"#
        );
        for text in [event, &whole] {
            match (decode(&mirror(), value(text.as_bytes())), expected) {
                (Ok(found), Ok((id, name, lsn))) => {
                    assert_eq!(found.columns[0].as_deref(), Some(id), "{text}");
                    assert_eq!(found.columns[1].as_deref(), name, "{text}");
                    assert_eq!(
                        (found.entity.as_deref(), found.sequence),
                        (Some(id), Some(lsn))
                    );
                }
                (Err(found), Err(why)) => assert!(found.contains(why), "{found}"),
                (found, _) => panic!("{found:?}: {text}"),
            }
        }
    };
    let source = r#""source":{"lsn":42,"table":"t"},"ts_ms":1"#;
    check(
        &format!(r#"{{"before":null,"after":{{"id":1,"name":"a"}},{source},"op":"c"}}"#),
        Ok(("1", Some("a"), 42)),
    );
    check(
        &format!(r#"{{"after":{{"id":1,"name":"a"}},{source},"op":"r"}}"#),
        Ok(("1", Some("a"), 42)),
    );
    check(
        &format!(
            r#"{{"before":{{"id":1,"name":"a"}},"after":{{"id":1,"name":"b"}},{source},"op":"u"}}"#
        ),
        Ok(("1", Some("b"), 42)),
    );
    check(
        &format!(r#"{{"before":{{"id":1,"name":"a"}},"after":null,{source},"op":"d"}}"#),
        Ok(("1", Some("a"), 42)),
    );
    // As Postgres logs a deletion unless it is asked for more.
    check(
        &format!(r#"{{"before":{{"id":1,"name":null}},"after":null,{source},"op":"d"}}"#),
        Ok(("1", None, 42)),
    );
    check(
        &format!(r#"{{"after":{{"id":1,"name":null}},{source},"op":"c"}}"#),
        Err("column `name` (`/name`): missing or null"),
    );
    check(
        &format!(r#"{{"before":null,"after":null,{source},"op":"t"}}"#),
        Err("type (`envelope:/op`): `t` is none that the projection knows"),
    );
    check(
        &format!(
            r#"{{"after":{{"id":1,"name":"__debezium_unavailable_value"}},{source},"op":"u"}}"#
        ),
        Err("REPLICA IDENTITY FULL"),
    );
    // As bytes, and as an array.
    for of in [
        r#""X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==""#,
        r#"["__debezium_unavailable_value"]"#,
    ] {
        check(
            &format!(r#"{{"after":{{"id":1,"name":{of}}},{source},"op":"u"}}"#),
            Err("REPLICA IDENTITY FULL"),
        );
    }
    check(
        &format!(r#"{{"after":{{"id":1,"name":"a"}},{source}}}"#),
        Err("no change event"),
    );
    check(
        r#"{"after":{"id":1,"name":"a"},"op":"c"}"#,
        Err("sequence (`envelope:/source/lsn`): missing"),
    );
    let tombstone = decode(&mirror(), RecordBuilder::default()).unwrap();
    assert!(tombstone.filtered);
}

#[test]
fn an_unknown_type_is_what_the_projection_says() {
    let of = |unknown, payload: &'static str| {
        let mut wanted = projection(&[("v", Bigint, pointer("/v"), false)]);
        wanted.entity = Some(pointer("/e"));
        wanted.types = Some(Types::new(pointer("/type"), &["A", "B"]).unknown(unknown));
        let partition = TopicPartition::new("t", 0);
        let records = [
            value(br#"{"type":"B","e":"x","v":1}"#).build(),
            value(payload.as_bytes()).build(),
        ];
        let decoder = Decoder::new(&wanted, None);
        let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
        assert_eq!(events.types, [Some(1), None]);
        assert_eq!(events.columns[0].len(), 2);
        let why = events
            .rejected
            .get(&1)
            .map(|rejection| rejection.detail.clone());
        (
            events.filtered[1],
            events.halts_at,
            why,
            events.readable_entity(1).map(str::to_owned),
        )
    };
    // Its other fields may be missing: it is another type.
    let unknown = r#"{"type":"C","e":"x"}"#;
    let known = "type (`/type`): `C` is none that the projection knows";
    let (filtered, halts, why, _) = of(UnknownType::Halt, unknown);
    assert_eq!((filtered, halts), (false, Some(1)));
    assert!(why.unwrap().starts_with(known));
    assert_eq!(
        of(UnknownType::Park, unknown),
        (false, None, Some(known.to_owned()), Some("x".to_owned()))
    );
    let (filtered, halts, why, _) = of(UnknownType::Filter, unknown);
    assert_eq!((filtered, halts, why), (true, None, None));
    // One without a type is at fault itself.
    let (_, halts, why, _) = of(UnknownType::Halt, r#"{"e":"x"}"#);
    assert_eq!(
        (halts, why.as_deref()),
        (None, Some("type (`/type`): missing"))
    );
}

#[test]
fn a_tombstone_may_be_an_event_of_its_key() {
    let mut wanted = projection(&[("v", Bigint, pointer("/v"), false)]);
    wanted.entity = Some(Source::Key);
    wanted.tombstones = Some(Tombstones::Event);
    let record = RecordBuilder {
        key: Some(b"k"),
        ..RecordBuilder::default()
    };
    let found = decode(&wanted, record).unwrap();
    assert_eq!(
        (found.columns, found.entity.as_deref(), found.filtered),
        (vec![None], Some("k"), false)
    );
    let nameless = decode(&wanted, RecordBuilder::default());
    assert_eq!(nameless.unwrap_err(), "entity (the record key): missing");
}

/// A datum of `{"v": 5}` behind each kind of frame.
#[test]
fn a_value_says_by_its_frame_what_it_was_written_with() {
    let schema = |text: &str| Arc::new(crate::avro::Schema::parse(text, &[]).unwrap());
    let new = schema(r#"{"type":"record","name":"R","fields":[{"name":"v","type":"long"}]}"#);
    let old = schema(
        r#"{"type":"record","name":"R","fields":[{"name":"x","type":"string"},{"name":"v","type":"int"}]}"#,
    );
    let mut wanted = projection(&[("v", Bigint, pointer("/v"), false)]);
    let mut check = |framing: Framing, bytes: &[u8], expected: Result<&str, &str>| {
        wanted.format = Format::Avro(Avro::new(Arc::clone(&new), framing));
        match (decode(&wanted, value(bytes)), expected) {
            (Ok(found), Ok(v)) => assert_eq!(found.columns[0].as_deref(), Some(v)),
            (Err(found), Err(why)) => assert!(found.contains(why), "{found}"),
            (found, _) => panic!("{found:?}"),
        }
    };
    let single = |of: &crate::avro::Schema, datum: &[u8]| {
        [&[0xc3, 1][..], &of.fingerprint(), datum].concat()
    };
    let both = || Framing::SingleObject(vec![Arc::clone(&old)]);
    check(both(), &single(&new, b"\x0a"), Ok("5"));
    check(both(), &single(&old, b"\x02a\x0a"), Ok("5"));
    check(
        Framing::SingleObject(Vec::new()),
        &single(&old, b"\x02a\x0a"),
        Err("whose fingerprint is none of those"),
    );
    check(
        both(),
        b"\xc3\x01\x00",
        Err("ends before its schema's fingerprint"),
    );
    check(
        both(),
        b"\0\0\0\0\x01\x0a",
        Err(
            "it begins with 00 00, not with the c3 01 of single-object encoding; it looks like Confluent's",
        ),
    );
    check(both(), b"", Err("not with the c3 01"));
    check(Framing::Raw(Arc::clone(&new)), b"\x0a", Ok("5"));
    check(Framing::Raw(Arc::clone(&old)), b"\x02a\x0a", Ok("5"));
    check(
        Framing::Raw(Arc::clone(&old)),
        b"\x0a",
        Err("not what its schema writes"),
    );
    check(
        Framing::Confluent,
        b"\0\0\0\0\x01\x0a",
        Err("there is no [schema_registry] to ask"),
    );
    // As the library writes it.
    let library = apache_avro::Schema::parse_str(
        r#"{"type":"record","name":"R","fields":[{"name":"v","type":"long"}]}"#,
    )
    .unwrap();
    let fingerprint = library.fingerprint::<apache_avro::rabin::Rabin>();
    assert_eq!(fingerprint.bytes, new.fingerprint());
}

/// A registry that nobody asks.
fn silent_registry() -> Arc<Registry> {
    let second = std::time::Duration::from_secs(1);
    let settings = crate::registry::Settings {
        name: "default".to_owned(),
        urls: Vec::new(),
        credentials: crate::registry::Credentials::None,
        authorities: None,
        identity: None,
        timeout: second,
        unknown_grace: second,
        verify_every: second * 3600,
        patience: second,
    };
    let timeouts = crate::store::Timeouts {
        statement: second,
        lock: second,
        idle_in_transaction: second,
    };
    let database = crate::store::Database::new("postgres://localhost/none", timeouts).unwrap();
    Registry::new(settings, database).unwrap()
}

/// Decodes values by a schema of one field.
fn framed_by(framing: Framing, registry: &Arc<Registry>) -> Decoder {
    let mut wanted = projection(&[("v", Bigint, pointer("/v"), false)]);
    wanted.format = Format::Avro(Avro::new(one_field(), framing));
    Decoder::new(&wanted, Some(registry))
}

fn one_field() -> Arc<crate::avro::Schema> {
    let text = r#"{"type":"record","name":"R","fields":[{"name":"v","type":"long"}]}"#;
    Arc::new(crate::avro::Schema::parse(text, &[]).unwrap())
}

// I10: one writer forgets while another one is still making a plan of what was known before.
#[tokio::test]
async fn a_plan_that_was_begun_before_a_doubt_is_not_kept() {
    let registry = silent_registry();
    let decoder = framed_by(Framing::Confluent, &registry);
    let partition = TopicPartition::new("t", 0);
    let records = [value(b"\0\0\0\0\x07\x0a").build()];
    let shares = [(&partition, &records[..])];
    let Payload::Avro(avro) = &decoder.payload else {
        panic!("no Avro")
    };
    let unknown = UnknownSchemas(BTreeMap::from([(7, 0)]));
    let before = registry.doubts();
    assert!(avro.plan(7, &one_field(), before).is_ok());
    assert!(decoder.decode(&shares).unwrap().rejected.is_empty());
    registry.doubt(7);
    assert_eq!(decoder.decode(&shares).unwrap_err(), unknown);
    assert!(avro.plan(7, &one_field(), before).is_ok());
    assert_eq!(decoder.decode(&shares).unwrap_err(), unknown);
    assert!(avro.plan(7, &one_field(), registry.doubts()).is_ok());
    assert!(decoder.decode(&shares).unwrap().rejected.is_empty());
}

// I10: a registry's numbers mean nothing to values that name their schema otherwise.
#[tokio::test]
async fn a_doubt_of_a_number_parks_nothing_that_has_no_number() {
    let registry = silent_registry();
    let partition = TopicPartition::new("t", 0);
    let single = [&[0xc3, 1][..], &one_field().fingerprint(), b"\x0a"].concat();
    for (framing, bytes) in [
        (Framing::SingleObject(Vec::new()), &single[..]),
        (Framing::Raw(one_field()), b"\x0a"),
    ] {
        let decoder = framed_by(framing, &registry);
        registry.doubt(7);
        let records = [value(bytes).build()];
        let events = decoder.decode(&[(&partition, &records[..])]).unwrap();
        assert_eq!(events.rejected.len(), 0);
    }
}

#[test]
fn a_handler_reads_columns_by_name_and_type() {
    let mut projection = projection(&[
        ("amount", Bigint, pointer("/amount"), false),
        ("price", Numeric, pointer("/price"), false),
        ("note", Text, pointer("/note"), true),
    ]);
    projection.tombstones = Some(crate::projection::Tombstones::Event);
    let partition = TopicPartition::new("t", 0);
    let whole = br#"{"amount": -5, "price": 1.10}"#;
    let gone = RecordBuilder::default();
    let records = [value(whole).build(), gone.build()];
    let events = Decoder::new(&projection, None)
        .decode(&[(&partition, &records[..])])
        .unwrap();
    let batch = Batch {
        events: &events,
        by_entity: &[0, 1],
        in_order: &[0, 1],
        gate_rows: None,
    };
    let [event, gone] = [0, 1].map(|event| batch.iter().nth(event).unwrap());
    assert_eq!(event.get::<i64>("amount").unwrap(), -5);
    assert_eq!(event.get::<Option<i64>>("amount").unwrap(), Some(-5));
    assert_eq!(event.get::<&str>("price").unwrap(), "1.10");
    assert_eq!(event.get::<Option<&str>>("note").unwrap(), None);
    assert_eq!(gone.get::<Option<i64>>("amount").unwrap(), None);

    let refused = |error: HandlerError| (error.class(), error.place(), error.to_string());
    let halts = |why: &str| (Class::Halt, None, why.to_owned());
    assert_eq!(
        refused(gone.get::<i64>("amount").unwrap_err()),
        (
            Class::Terminal,
            Some(1),
            "column `amount` is null".to_owned()
        )
    );
    // What the handler has got wrong is nobody's fault but its own, whatever the record has.
    for event in [event, gone] {
        assert_eq!(
            refused(event.get::<Option<i32>>("amount").unwrap_err()),
            halts("column `amount` is of type bigint, which is not read as i32")
        );
        assert_eq!(
            refused(event.get::<&str>("note").unwrap_err()),
            halts("column `note` is declared nullable; read it as Option<&str>")
        );
        assert_eq!(
            refused(event.get::<i64>("amonut").unwrap_err()),
            halts("there is no column `amonut`; declared are amount, price, note")
        );
    }
}
