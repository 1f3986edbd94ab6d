//! Schemas that are made to do harm: none ends the process, takes long or takes much.

use serde_json::{Value, json};

use super::*;

const LIMITS: Limits = Limits {
    nesting_max: 64,
    items_max: 1_000_000,
    text_bytes_max: 16 << 20,
};

/// On a stack a fourth as large as that of a thread that decodes.
fn on_a_small_stack(check: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(512 << 10);
    thread.spawn(check).unwrap().join().unwrap();
}

fn whole() -> Vec<Wanted> {
    vec![Wanted {
        path: Vec::new(),
        slot: 0,
    }]
}

fn read(writer: &Schema, reader: &Schema, bytes: &[u8]) -> Result<(), String> {
    let plan = Plan::new(writer, reader, &whole())?;
    plan.extract(bytes, LIMITS, &mut [None])
}

#[test]
fn a_schema_is_nested_as_deeply_as_its_text_may_be() {
    on_a_small_stack(|| {
        let nested = |of: &str, end: &str, depth: usize| {
            let text = format!("{}\"int\"{}", of.repeat(depth), end.repeat(depth));
            Schema::parse(&text, &[])
        };
        assert!(nested(r#"{"type":"array","items":"#, "}", 120).is_ok());
        assert!(nested(r#"{"type":"#, "}", 120).is_ok());
        for depth in [128, 5_000, 1_000_000] {
            let why = nested(r#"{"type":"array","items":"#, "}", depth).unwrap_err();
            assert_eq!(why, "the schema is nested deeper than 127 levels of JSON");
        }
        let why = Schema::parse(&"[".repeat(1_000_000), &[]).unwrap_err();
        assert_eq!(why, "the schema is nested deeper than 127 levels of JSON");
    });
}

/// Records of which each has the one before in it, `count` times.
fn chain(length: usize, count: usize, default: Option<Value>) -> Vec<Value> {
    let record = |at: usize| {
        let field = |number: usize| {
            let mut field = json!({"name": format!("f{number}"), "type": format!("R{}", at - 1)});
            if let Some(default) = &default {
                field["default"] = default.clone();
            }
            field
        };
        let count = if at == 0 { 0 } else { count };
        let fields: Vec<Value> = (0..count).map(field).collect();
        json!({"type": "record", "name": format!("R{at}"), "fields": fields})
    };
    (0..length).map(record).collect()
}

#[test]
fn a_chain_of_types_of_any_length_needs_no_stack() {
    on_a_small_stack(|| {
        let all = |length: usize| {
            let fields = (0..).zip(chain(length, 1, None));
            let fields = fields.map(|(at, of)| json!({"name": format!("f{at}"), "type": of}));
            let fields: Vec<Value> = fields.collect();
            let all = json!({"type": "record", "name": "All", "fields": fields});
            Schema::parse(&all.to_string(), &[])
        };
        let schema = all(9_999).unwrap();
        let why = read(&schema, &schema, &[]).unwrap_err();
        assert!(
            why.starts_with("nested deeper than 64 (decode.nesting_max)"),
            "{why}"
        );
        assert_ne!(schema.fingerprint(), [0; 8]);
        let why = all(10_000).unwrap_err();
        assert_eq!(why, "the schema has more than 10000 types");
    });
}

#[test]
fn a_chain_of_schemas_that_refer_to_each_other_needs_no_stack() {
    on_a_small_stack(|| {
        let deep = |name: &str, of: &str| {
            let inside = (0..40).fold(json!(of), |of, _| json!({"type": "array", "items": of}));
            let fields = json!([{"name": "f", "type": inside}]);
            json!({"type": "record", "name": name, "fields": fields}).to_string()
        };
        let texts: Vec<String> = (1..=200)
            .map(|at| deep(&format!("R{at}"), &format!("R{}", at - 1)))
            .collect();
        let first = r#"{"type": "record", "name": "R0", "fields": []}"#.to_owned();
        let references: Vec<&str> = [&first].into_iter().chain(&texts).map(|t| &**t).collect();
        let schema = Schema::parse(&deep("Main", "R200"), &references).unwrap();
        assert_eq!(read(&schema, &schema, &[0]), Ok(()));
        assert_ne!(schema.fingerprint(), [0; 8]);
    });
}

#[test]
fn defaults_of_defaults_come_to_an_end() {
    on_a_small_stack(|| {
        let check = |reader: Value, expected: &str| {
            let reader = Schema::parse(&reader.to_string(), &[]).unwrap();
            let why = reader.check_defaults().unwrap_err();
            assert!(why.contains(expected), "{why}");
            let empty = r#"{"type": "record", "name": "Last", "fields": []}"#;
            let writer = Schema::parse(empty, &[]).unwrap();
            let why = read(&writer, &reader, &[]).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        let union = |length: usize, count: usize| {
            let mut all = chain(length, count, Some(json!({})));
            all[length - 1]["name"] = json!("Last");
            Value::from(all)
        };
        check(union(1_000, 1), "nested deeper than 128");
        let field = json!({"name": "f", "type": "Last", "default": {}});
        let itself = json!({"type": "record", "name": "Last", "fields": [field]});
        check(itself, "nested deeper than 128");
        // 2^100 values.
        check(union(100, 2), "more than 10000 values");
    });
}

#[test]
fn two_schemas_have_no_more_pairs_of_types_than_a_plan_may_have() {
    on_a_small_stack(|| {
        // Two circles: one goes round while the other is somewhere else each time.
        let circle = |length: usize, aside: &str| {
            let of = |at: usize, to: usize| {
                let field = json!({"name": "n", "type": format!("n{to}.R")});
                json!({"type": "record", "name": "R", "namespace": format!("n{at}"), "fields": [field]})
            };
            let others = (1..length).map(|at| of(at, at - 1));
            let others: Vec<Value> = std::iter::once(json!("null")).chain(others).collect();
            let mut first = of(0, length - 1);
            let aside = json!({"name": aside, "type": others, "default": null});
            first["fields"] = json!([aside, first["fields"][0]]);
            Schema::parse(&first.to_string(), &[]).unwrap()
        };
        let plan = Plan::new(&circle(99, "w"), &circle(101, "r"), &whole());
        assert!(plan.is_ok());
        let plan = Plan::new(&circle(317, "w"), &circle(319, "r"), &whole());
        let why = plan.unwrap_err();
        assert!(why.contains("more than 100000 pairs of types"), "{why}");
    });
}
