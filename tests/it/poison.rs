//! Records that others have reported as deadly, and errors that only look as if a record were at fault.

use serde_json::json;

use crate::harness::{LONG, Process, Sender, World, wait_until};

const PROJECTIONS: &str = r#"
[projections.score]
topics   = ["@in@"]
entity   = "/account"
sequence = "/seq"
gate     = "newest"
setup    = "score.sql"
columns  = { account = "text", note = { type = "text", nullable = true } }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, note) SELECT account, note FROM latest WHERE public.works()
ON CONFLICT (account) DO UPDATE SET note = excluded.note"""
"#;

const SETUP: &str = "CREATE TABLE score (account text PRIMARY KEY, note text)";

/// Fails with the error that `trouble` names, if it names one.
const WORKS: &str = "
    CREATE TABLE public.trouble (sqlstate text NOT NULL);
    CREATE FUNCTION public.works() RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        code text := (SELECT sqlstate FROM public.trouble);
    BEGIN
        IF code IS NOT NULL THEN
            RAISE EXCEPTION 'trouble' USING ERRCODE = code;
        END IF;
        RETURN true;
    END $$";

fn score() -> World {
    let world = World::new(1, PROJECTIONS, &[("score.sql", SETUP)]);
    world.db.run(WORKS);
    world
}

fn send(sender: &Sender, account: &str, seq: i64, note: &str) {
    sender.send_json(0, &json!({ "account": account, "seq": seq, "note": note }));
}

fn applied(world: &World) -> i64 {
    world.db.one("SELECT count(*) FROM score.score")
}

fn parked(world: &World) -> i64 {
    world.db.one("SELECT count(*) FROM tidegate.dead_letter")
}

/// How many lines of the log speak of a record or a partition that fares badly.
fn complaints(process: &Process) -> usize {
    let log = process.log();
    let complains = |line: &&str| line.contains(" ERROR ") || line.contains(": parked ");
    log.lines().filter(complains).count()
}

// I6: what names no entity holds up nobody, and is told of once.
#[test]
fn a_record_without_a_key_is_named_by_its_body_or_parked_alone() {
    let world = score();
    let sender = world.sender();
    sender.send(0, None, None);
    let body = br#"{"account": "a", "seq": 1, "note": "x"}"#;
    sender.send(0, None, Some(body));
    sender.send(0, Some(b"a"), Some(b"not json"));
    send(&sender, "a", 2, "y");
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    let note: String = world
        .db
        .one("SELECT note FROM score.score WHERE account = 'a'");
    assert_eq!(note, "y");
    let letters: Vec<(i64, Option<String>, String, i32)> = world.db.rows(
        "SELECT record_offset, entity, reason, attempts FROM tidegate.dead_letter ORDER BY number",
    );
    let letter = |offset: i64| (offset, None, "undecodable".to_owned(), 1);
    assert_eq!(letters, [letter(0), letter(2)]);
    assert_eq!(complaints(&process), 1, "one line for the batch");
    world.tidegate(&["verify"]).expect(0);
}

// I6: one of many; all others are applied.
#[test]
fn one_nul_among_five_hundred_records_is_parked_alone() {
    let world = score();
    let sender = world.sender();
    for number in 0..500 {
        let note = if number == 250 { "a\0b" } else { "ab" };
        send(&sender, &format!("a-{number}"), 1, note);
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!((applied(&world), parked(&world)), (499, 1));
    let detail: String = world
        .db
        .one("SELECT detail FROM tidegate.dead_letter WHERE entity = 'a-250'");
    assert!(detail.contains("NUL"), "{detail}");
}

// I6: what made the record unreadable does not make the dead letter so, and trying again changes no byte of it.
#[test]
fn bytes_that_no_text_can_hold_are_kept_as_they_are() {
    let world = score();
    let sender = world.sender();
    let (key, value): (&[u8], &[u8]) = (b"\0\xff", b"{\"a\0\":1}");
    let headers: [(&str, &[u8]); 3] = [("k", b"\xff\xfe"), ("k", b""), ("l", b"\0")];
    sender.send_with_headers(0, Some(key), Some(value), &headers);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    type Bytes = (Vec<u8>, Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>, i32);
    let kept = || -> Bytes {
        world
            .db
            .rows("SELECT key, value, header_names, header_values, attempts FROM tidegate.dead_letter")
            .remove(0)
    };
    let names = headers.map(|(name, _)| name.as_bytes().to_vec()).to_vec();
    let values = headers.map(|(_, value)| value.to_vec()).to_vec();
    let expected = |attempts| {
        (
            key.to_vec(),
            value.to_vec(),
            names.clone(),
            values.clone(),
            attempts,
        )
    };
    assert_eq!(kept(), expected(1));
    for _ in 0..3 {
        world
            .tidegate(&["dead-letters", "redrive", "score"])
            .expect(70);
    }
    assert_eq!(kept(), expected(4));
    let shown = world
        .tidegate(&["dead-letters", "show", "1"])
        .expect(0)
        .stdout;
    for words in [
        "key        0x00ff",
        "value      0x7b226100223a317d",
        "header     k: 0xfffe",
    ] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
}

// I10: of serialization failures to a server that is shutting down, each is waited out.
#[test]
fn no_error_that_may_pass_later_parks_a_record() {
    let world = score();
    let sender = world.sender();
    let process = world.start("a");
    wait_until(LONG, "it has begun", || !world.positions().is_empty());
    let codes = [
        "40001", "40P01", "55P03", "57014", "57P01", "57P03", "53300", "53100", "08006", "25006",
        "25P03", "58030",
    ];
    for (seq, code) in (1..).zip(codes) {
        world
            .db
            .run(&format!("INSERT INTO public.trouble VALUES ('{code}')"));
        send(&sender, "a", seq, code);
        sender.flush();
        let told = || {
            process.has_logged(&["batch failed; trying again", code])
                || process.has_logged(&["connection given up", code])
        };
        wait_until(LONG, &format!("{code} is met"), told);
        world.db.run("DELETE FROM public.trouble");
        world.wait_until_done(LONG);
        let note: String = world.db.one("SELECT note FROM score.score");
        assert_eq!(note, code);
    }
    assert_eq!(parked(&world), 0);
    assert!(!process.has_logged(&["halting"]));
    world.tidegate(&["verify"]).expect(0);
}
