//! Entities that are numbers or UUIDs: keys of tables as such, and one entity however it is spelled.

use crate::bulk;
use crate::harness::{LONG, Launch, World};

/// A sum of each entity in SQL, with a gate apart.
const APART: &str = r#"
[projections.apart]
topics      = ["@in@"]
entity      = "key"
entity_type = "bigint"
sequence    = "header:sequence"
gate        = "next"
columns     = { amount = "bigint" }
setup       = "apart.sql"
entity_rows = ["sum.entity"]
[[projections.apart.apply]]
sql = """
INSERT INTO sum AS s (entity, amount, events) SELECT _entity, sum(amount), count(*) FROM events GROUP BY _entity
ON CONFLICT (entity) DO UPDATE SET amount = s.amount + excluded.amount, events = s.events + excluded.events"""
"#;
/// The same with the gate in the row.
const IN_ROW: &str = r#"
[projections.in_row]
topics      = ["@in@"]
entity      = "key"
entity_type = "bigint"
sequence    = "header:sequence"
gate        = "newest"
gate_in     = "sum.entity"
columns     = { amount = "bigint" }
setup       = "in_row.sql"
entity_rows = ["sum.entity"]
[[projections.in_row.apply]]
sql = """
INSERT INTO sum AS s (entity, amount, events, _sequence, _previous)
SELECT _entity, sum(amount), count(*), max(_sequence), max(_previous) FROM events GROUP BY _entity
ON CONFLICT (entity) DO UPDATE
SET amount = s.amount + excluded.amount, events = s.events + excluded.events,
    _sequence = excluded._sequence, _previous = excluded._previous
WHERE s._sequence = excluded._previous"""
"#;
const SETUP: &str =
    "CREATE TABLE sum (entity bigint PRIMARY KEY, amount bigint NOT NULL, events bigint NOT NULL";

/// A process with the projections of the configuration, and the folds `newest` (the gate in the row) and `next`.
fn launch<'w>(world: &'w World, name: &str) -> Launch<'w> {
    bulk::launch(world, name).env("TABLE", "of numbers")
}

fn sums(world: &World, schema: &str) -> Vec<(String, i64, i64)> {
    world.db.rows(&format!(
        "SELECT entity::text, amount, events::bigint FROM {schema}.sum ORDER BY sum.entity"
    ))
}

/// Three entities whose events spell them in several ways, each of them sent twice, in one partition.
fn world() -> (World, usize) {
    let in_row = format!("{SETUP}, _sequence bigint NOT NULL, _previous bigint)");
    let files = [
        ("apart.sql", format!("{SETUP})")),
        ("in_row.sql", in_row.clone()),
        (
            "by_uuid.sql",
            in_row.replace("entity bigint", "entity uuid"),
        ),
    ];
    let files = files.each_ref().map(|(name, sql)| (*name, &**sql));
    let by_uuid = IN_ROW
        .replace("in_row", "by_uuid")
        .replace("\"bigint\"\nsequence", "\"uuid\"\nsequence")
        .replace("\"key\"", "\"/id\"")
        .replace("header:sequence", "/s");
    let world = World::new(2, &format!("{APART}{IN_ROW}{by_uuid}"), &files);
    let sender = world.sender();
    let spellings: [&[&str]; 3] = [&["7", "007", "+7"], &["-12", "-0012"], &["900"]];
    let mut refused = 0;
    for sequence in 1..=12_i64 {
        for (entity, spellings) in spellings.iter().enumerate() {
            let key = spellings[sequence as usize % spellings.len()];
            let id = format!("67e55044-10b1-426f-9247-bb680e5fe0c{entity}");
            let id = match sequence % 3 {
                0 => id.to_uppercase(),
                1 => id.replace('-', ""),
                _ => id,
            };
            let value = format!(r#"{{"amount":{sequence},"id":"{id}","s":{sequence}}}"#);
            let sequence = sequence.to_string();
            let headers: [(&str, &[u8]); 1] = [("sequence", sequence.as_bytes())];
            for _ in 0..2 {
                sender.send_with_headers(
                    entity as i32 % 2,
                    Some(key.as_bytes()),
                    Some(value.as_bytes()),
                    &headers,
                );
            }
        }
    }
    for key in ["seven", "7.0", "9223372036854775808"] {
        refused += 1;
        let value: &[u8] = br#"{"amount":1,"id":"seven","s":1}"#;
        let headers: [(&str, &[u8]); 1] = [("sequence", b"1")];
        sender.send_with_headers(0, Some(key.as_bytes()), Some(value), &headers);
    }
    sender.flush();
    (world, refused)
}

// I1, I4, I6
#[test]
fn equal_values_are_one_entity_of_every_kind_of_projection() {
    let (world, refused) = world();
    let process = launch(&world, "a").start();
    world.wait_until_done(LONG);
    let expected = ["-12", "7", "900"].map(|entity| (entity.to_owned(), 78, 12));
    for kind in ["apart", "in_row", "newest", "next"] {
        assert_eq!(sums(&world, kind), expected, "{kind}");
    }
    let of_uuids = [0, 1, 2].map(|last| {
        let uuid = format!("67e55044-10b1-426f-9247-bb680e5fe0c{last}");
        (uuid, 78, 12)
    });
    assert_eq!(sums(&world, "by_uuid"), of_uuids);
    let gates: Vec<(String,)> = world
        .db
        .rows("SELECT entity FROM apart._gate ORDER BY entity");
    let gates: Vec<&str> = gates.iter().map(|(entity,)| &**entity).collect();
    assert_eq!(gates, ["-12", "7", "900"]);
    let undecodable: Vec<(String, i64, String)> = world.db.rows(
        "SELECT projection, count(*), min(detail) FROM tidegate.dead_letter
         WHERE reason = 'undecodable' GROUP BY projection ORDER BY projection",
    );
    assert_eq!(undecodable.len(), 5, "{undecodable:?}");
    for (projection, records, error) in undecodable {
        assert_eq!(records, refused as i64, "{projection}");
        let entity_type = match &*projection {
            "by_uuid" => "uuid",
            _ => "bigint",
        };
        let said = format!("it is not a {entity_type} (`entity_type`)");
        assert!(error.contains(&said), "{projection}: {error}");
    }
    process.stop();
}

// I4, I8: what is built, by COPY where it can be, is what was applied; and an entity is named as anybody spells it.
#[test]
fn numbers_are_built_anew_as_they_were_applied() {
    let (world, _) = world();
    let process = launch(&world, "a").start();
    world.wait_until_done(LONG);
    for kind in ["apart", "in_row", "newest", "next"] {
        launch(&world, "build")
            .output(&["rebuild", "start", kind])
            .expect(0);
        assert_eq!(sums(&world, &format!("{kind}__g2")), sums(&world, kind));
        launch(&world, "verify")
            .output(&["rebuild", "verify", kind])
            .expect(0);
        launch(&world, "abandon")
            .output(&["rebuild", "abandon", kind, "--yes"])
            .expect(0);
    }
    let before = sums(&world, "next");
    for kind in ["apart", "next"] {
        world.db.run(&format!(
            "UPDATE {kind}.sum SET amount = 99 WHERE entity = 7"
        ));
        launch(&world, "entity")
            .output(&["rebuild", "entity", kind, "0007", "--yes"])
            .expect(0);
        assert_eq!(sums(&world, kind), before, "{kind}");
        let explained = launch(&world, "explain").output(&["explain", kind, "--entity", "+7"]);
        let explained = explained.expect(0).stdout;
        assert!(explained.contains("stands at sequence 12"), "{explained}");
        let refused = launch(&world, "refused").output(&["rebuild", "entity", kind, "7x", "--yes"]);
        let refused = refused.expect(64).stderr;
        assert!(refused.contains("`7x` can be no entity"), "{refused}");
    }
    let (of_uuids, uuid) = (
        sums(&world, "by_uuid"),
        "67E55044-10B1-426F-9247-BB680E5FE0C1",
    );
    let spoil = format!("UPDATE by_uuid.sum SET amount = 99 WHERE entity = '{uuid}'");
    world.db.run(&spoil);
    launch(&world, "entity")
        .output(&["rebuild", "entity", "by_uuid", uuid, "--yes"])
        .expect(0);
    assert_eq!(sums(&world, "by_uuid"), of_uuids);
    process.stop();
}

#[test]
fn a_table_with_keys_of_another_type_is_refused() {
    let check = |projections: &str, setup: &str, expected: &str| {
        let world = World::new(1, projections, &[("in_row.sql", setup)]);
        let found = world.tidegate(&["check"]).expect(78);
        let said = format!("{}{}", found.stdout, found.stderr);
        assert!(said.contains(expected), "{expected:?} in {said}");
    };
    let setup = format!("{SETUP}, _sequence bigint NOT NULL, _previous bigint)");
    check(
        IN_ROW,
        &setup.replace("entity bigint", "entity integer"),
        "no column `entity` of type bigint",
    );
    check(
        &IN_ROW.replace("entity_type = \"bigint\"\n", ""),
        &setup,
        "that is their `entity_type`",
    );
    check(
        &IN_ROW.replace("\"bigint\"\nsequence", "\"integer\"\nsequence"),
        &setup,
        "`entity_type`",
    );
}
