//! What a dead letter holds is kept for a time, that there was one for ever.

use serde_json::json;

use crate::harness::{LONG, World, wait_until};

const PROJECTIONS: &str = r#"
[dead_letters]
keep_days = 7

[projections.score]
topics   = ["@in@"]
entity   = "key"
sequence = "/seq"
gate     = "newest"
setup    = "score.sql"
columns  = { account = "text", amount = "bigint" }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, amount) SELECT account, 100 / amount FROM latest
ON CONFLICT (account) DO UPDATE SET amount = excluded.amount"""
"#;

const SETUP: &str = "CREATE TABLE score (account text PRIMARY KEY, amount bigint NOT NULL)";

// I6: only what is resolved, and long enough ago, loses its bytes; every row stays, and the account holds.
#[test]
fn a_resolved_letter_loses_its_bytes_and_a_waiting_one_never_does() {
    let world = World::new(1, PROJECTIONS, &[("score.sql", SETUP)]);
    let sender = world.sender();
    for account in ["old", "new", "waiting"] {
        let poison = json!({ "account": account, "seq": 1, "amount": 0 }).to_string();
        let headers: [(&str, &[u8]); 1] = [("trace", b"\xff\0")];
        sender.send_with_headers(
            0,
            Some(account.as_bytes()),
            Some(poison.as_bytes()),
            &headers,
        );
    }
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    for account in ["old", "new"] {
        let discard = [
            "dead-letters",
            "discard",
            "score",
            "--entity",
            account,
            "--why",
            "gone",
            "--yes",
        ];
        world.tidegate(&discard).expect(0);
    }
    process.stop();
    world.db.run(
        "UPDATE tidegate.dead_letter
         SET parked_at = now() - interval '30 days', tried_at = now() - interval '30 days',
             resolved_at = resolved_at - CASE entity WHEN 'old' THEN interval '8 days' ELSE interval '6 days' END",
    );
    let _process = world.start("a");
    let cleared = "SELECT entity FROM tidegate.dead_letter WHERE cleared_at IS NOT NULL";
    wait_until(LONG, "one is cleared", || {
        !world.db.rows::<(String,)>(cleared).is_empty()
    });
    type Row = (String, bool, bool, i32, String, String);
    let rows: Vec<Row> = world.db.rows(
        "SELECT entity, key IS NULL, value IS NULL, cardinality(header_names), state, left(detail, 10)
         FROM tidegate.dead_letter ORDER BY number",
    );
    let row = |entity: &str, is_cleared, state: &str| {
        let (headers, detail) = if is_cleared {
            (0, "")
        } else {
            (1, "apply 1: d")
        };
        (
            entity.to_owned(),
            is_cleared,
            is_cleared,
            headers,
            state.to_owned(),
            detail.to_owned(),
        )
    };
    let expected = [
        row("old", true, "discarded"),
        row("new", false, "discarded"),
        row("waiting", false, "waiting"),
    ];
    assert_eq!(rows, expected);
    world.tidegate(&["verify"]).expect(0);
    let shown = world
        .tidegate(&["dead-letters", "show", "1"])
        .expect(0)
        .stdout;
    assert!(
        shown.contains("removed    ") && !shown.contains("value  "),
        "{shown}"
    );
    let record = format!("{}/0@0", world.incoming());
    let explained = world
        .tidegate(&["explain", "score", &record])
        .expect(0)
        .stdout;
    assert!(
        explained.contains("discarded, after it was parked"),
        "{explained}"
    );
    assert!(explained.contains("its bytes were removed"), "{explained}");
    // Not even by hand.
    let refused = world
        .db
        .session()
        .try_run("UPDATE tidegate.dead_letter SET cleared_at = now() WHERE state = 'waiting'");
    assert!(refused.unwrap_err().contains("what_waits_keeps_its_bytes"));
}
