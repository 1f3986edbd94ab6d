//! The SQL files, against a migrated database.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::harness::{LONG, Session, TestDb, World, wait_until};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql")
}

fn statement(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap()
}

/// A migrated database with a generation's bookkeeping in schema `generation`.
fn prepared() -> World {
    let world = World::without_kafka();
    world.db.run(&format!(
        "CREATE SCHEMA generation; SET search_path = generation; {}; RESET search_path",
        statement("schema_bookkeeping.sql")
    ));
    world
}

fn session(db: &TestDb) -> Session {
    let mut session = db.session();
    session.run("SET search_path = generation, pg_temp; SET lock_timeout = '30s'");
    session
}

#[test]
fn every_statement_fits_the_migrated_schema() {
    let world = prepared();
    let mut session = session(&world.db);
    let mut files: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert!(files.len() > 30, "{files:?}");
    let mut wrong = Vec::new();
    for file in files
        .iter()
        // Those are no single statements that Postgres could prepare.
        .filter(|file| {
            !matches!(
                &***file,
                "schema_bookkeeping.sql"
                    | "scratch_empty.sql"
                    | "outbox_copy.sql"
                    | "held_copy.sql"
                    | "gate_copy.sql"
                    | "schema_grant_role.sql"
            )
        })
    {
        let prepare = format!("PREPARE checked AS {}", statement(file));
        match session.try_run(&prepare) {
            Ok(()) => session.run("DEALLOCATE checked"),
            Err(error) => wrong.push(format!("{file}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A gate statement with values in place of its parameters.
fn gate(file: &str, arrays: &[&str]) -> String {
    let mut sql = statement(file);
    for (number, array) in (1..).zip(arrays) {
        sql = sql.replace(&format!("${number}"), &format!("'{{{array}}}'"));
    }
    sql
}

type Moved = (String, Option<i64>, bool);

// I4: what `gate_next.sql` says about an entity never seen rests on this.
#[test]
fn a_row_that_the_gate_inserts_is_told_from_one_it_updates() {
    let world = prepared();
    let mut session = session(&world.db);
    let next =
        |entities: &str, last: &str, before: &str| gate("gate_next.sql", &[entities, last, before]);
    session.run("INSERT INTO _gate VALUES ('known', 4)");
    let moved: Vec<Moved> = session.rows(&next("known,new,ahead", "7,3,9", "4,0,8"));
    let ahead = ("ahead".to_owned(), Some(8), true);
    let new = ("new".to_owned(), Some(0), true);
    let known = ("known".to_owned(), Some(4), false);
    let mut sorted = moved.clone();
    sorted.sort();
    assert_eq!(sorted, [ahead, known, new]);

    // Again, and in one transaction after a savepoint that was rolled back: still told apart.
    session.run(
        "BEGIN; SAVEPOINT s; UPDATE _gate SET sequence = 100; INSERT INTO _gate VALUES ('other', 1);
         ROLLBACK TO s",
    );
    let moved: Vec<Moved> = session.rows(&next("known,other", "8,2", "7,1"));
    let mut sorted = moved;
    sorted.sort();
    let known = ("known".to_owned(), Some(7), false);
    assert_eq!(sorted, [known, ("other".to_owned(), Some(1), true)]);
    session.run("COMMIT");

    // Nothing new, and a gap: neither is answered.
    assert_eq!(session.rows::<Moved>(&next("known", "8", "7")), []);
    assert_eq!(session.rows::<Moved>(&next("known", "11", "9")), []);
    // A run that overlaps what is known joins on to it.
    let joined: Vec<Moved> = session.rows(&next("known", "10", "6"));
    assert_eq!(joined, [("known".to_owned(), Some(8), false)]);
}

// Whoever waits for an operator's action reads what that has made live, and does not take the projection for one that was
// never started.
#[test]
fn who_waits_for_a_reset_finds_the_generation_that_it_has_begun() {
    for file in ["projection_lock.sql", "projection_share.sql"] {
        let world = prepared();
        world.db.run(
            "INSERT INTO tidegate.projection VALUES ('p', 1);
             INSERT INTO tidegate.generation VALUES ('p', 1, 'live', 'p', 0, '', '')",
        );
        let of_p = |file: &str| statement(file).replace("$1", "'p'");
        let (lock, live) = (of_p(file), of_p("projection_live.sql"));
        let mut reset = session(&world.db);
        reset.run("BEGIN");
        reset.run(&of_p("projection_lock.sql"));
        reset.run(
            "UPDATE tidegate.generation SET state = 'retired';
             INSERT INTO tidegate.generation VALUES ('p', 2, 'live', 'p', 0, '', '');
             UPDATE tidegate.projection SET live_generation = 2",
        );
        let mut second = session(&world.db);
        let pid: i32 = second.one("SELECT pg_backend_pid()");
        let waiting = thread::spawn(move || {
            second.run("BEGIN");
            second.run(&lock);
            second.rows::<(i32,)>(&format!("WITH l AS ({live}) SELECT generation FROM l"))
        });
        wait_until(LONG, "the second waits for the reset", || {
            world
                .db
                .one(&format!("SELECT cardinality(pg_blocking_pids({pid})) > 0"))
        });
        reset.run("COMMIT");
        assert_eq!(waiting.join().unwrap(), [(2,)], "{file}");
    }
}

// I10: one entity at the highest sequence must not keep the others from following.
#[test]
fn a_gate_at_the_highest_sequence_stops_no_other_from_being_drained() {
    let world = prepared();
    let letter = |entity: &str, sequence: &str, offset: i64| {
        format!(
            "INSERT INTO tidegate.dead_letter (projection, generation, topic, incarnation, partition, record_offset, entity,
                                               sequence, header_names, header_values, reason, detail)
             VALUES ('p', 1, 't', 1, 0, {offset}, '{entity}', {sequence}, '{{}}', '{{}}', 'behind', '');"
        )
    };
    world.db.run(&format!(
        "INSERT INTO tidegate.projection VALUES ('p', 1);
         INSERT INTO tidegate.generation VALUES ('p', 1, 'live', 'p', 0, '', '');
         INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset) VALUES ('p', 1, 't', 0, 10);
         INSERT INTO generation._gate VALUES ('due', 4), ('gap', 4), ('last', {});
         {}{}{}",
        i64::MAX,
        letter("due", "5", 1),
        letter("gap", "6", 2),
        letter("last", "NULL", 3),
    ));
    let due = statement("dead_letter_drainable.sql")
        .replace("$1", "'p'")
        .replace("$2", "1");
    assert_eq!(
        session(&world.db).rows::<(String,)>(&due),
        [("due".to_owned(),)]
    );
}

/// Two transactions bring the same event. The second must wait for the first, and then be told what
/// has become of it.
fn race(
    file: &'static str,
    arrays: &'static [&str],
    known: bool,
    first_commits: bool,
) -> Vec<(String, Option<i64>)> {
    let world = prepared();
    let mut first = session(&world.db);
    if known {
        first.run("INSERT INTO _gate VALUES ('e', 4)");
    }
    first.run("BEGIN");
    let columns = format!(
        "WITH g AS ({}) SELECT entity, previous FROM g",
        gate(file, arrays)
    );
    let moved: Vec<(String, Option<i64>)> = first.rows(&columns);
    assert_eq!(moved.len(), 1, "the first passes");

    let mut second = session(&world.db);
    let pid: i32 = second.one("SELECT pg_backend_pid()");
    let waiting = thread::spawn(move || second.rows(&columns));
    wait_until(LONG, "the second waits for the first", || {
        world.db.one(&format!(
            "SELECT cardinality(pg_blocking_pids({pid})) > 0 FROM pg_stat_activity WHERE pid = {pid}"
        ))
    });
    first.run(if first_commits { "COMMIT" } else { "ROLLBACK" });
    waiting.join().unwrap()
}

// I4
#[test]
fn of_two_writers_with_the_same_event_one_passes_the_gate() {
    let newest: (&str, &[&str]) = ("gate_newest.sql", &["e", "5"]);
    let next: (&str, &[&str]) = ("gate_next.sql", &["e", "5", "4"]);
    for (file, arrays) in [newest, next] {
        for known in [true, false] {
            assert_eq!(
                race(file, arrays, known, true),
                [],
                "{file}, known: {known}"
            );
            let answer = race(file, arrays, known, false);
            // What `next` answers for an inserted row is what was asked.
            let previous = (known || file == "gate_next.sql").then_some(4);
            assert_eq!(
                answer,
                [("e".to_owned(), previous)],
                "{file}, known: {known}"
            );
        }
    }
}

// I4
#[test]
fn of_two_writers_with_the_same_id_one_passes_the_inbox() {
    for first_commits in [true, false] {
        let world = prepared();
        let insert = gate("inbox_insert.sql", &["a,b"]);
        let mut first = session(&world.db);
        first.run("BEGIN");
        assert_eq!(first.rows::<(String,)>(&insert).len(), 2);
        let mut second = session(&world.db);
        let pid: i32 = second.one("SELECT pg_backend_pid()");
        let waiting = thread::spawn(move || second.rows::<(String,)>(&insert).len());
        wait_until(LONG, "the second waits for the first", || {
            world
                .db
                .one(&format!("SELECT cardinality(pg_blocking_pids({pid})) > 0"))
        });
        first.run(if first_commits { "COMMIT" } else { "ROLLBACK" });
        assert_eq!(waiting.join().unwrap(), if first_commits { 0 } else { 2 });
    }
}

// I1, I2, I3: each condition of the compare-and-set counts alone.
#[test]
fn a_position_moves_only_from_where_it_stands_and_under_the_newest_claim() {
    const TOKEN: &str = "00000000-0000-0000-0000-00000000000a";
    let world = prepared();
    world.db.run(&format!(
        "INSERT INTO tidegate.projection VALUES ('p', 1);
         INSERT INTO tidegate.generation SELECT 'p', 1, 'live', nspname, oid, '', '' FROM pg_namespace
         WHERE nspname = 'generation';
         INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset, epoch, claim_token)
         VALUES ('p', 1, 't', 0, 10, 3, '{TOKEN}'), ('p', 1, 't', 1, 10, 3, '{TOKEN}')"
    ));
    // What a batch of two partitions says, and what the second one says instead of what is right.
    let advance = |from: i64, to: i64, epoch: i64, token: &str, xact: &str, schema: &str| {
        let mut sql = statement("position_advance.sql");
        let values = [
            ("$20", "'{0,0}'".to_owned()),
            ("$19", "'{NULL,NULL}'".to_owned()),
            ("$18", "'{NULL,NULL}'".to_owned()),
            (
                "$17",
                format!("(SELECT oid FROM pg_namespace WHERE nspname = '{schema}')"),
            ),
            ("$16", "'generation'".to_owned()),
            ("$15", xact.to_owned()),
            ("$14", "'{0,0}'".to_owned()),
            ("$13", "'{0,0}'".to_owned()),
            ("$12", "'{0,0}'".to_owned()),
            ("$11", format!("'{{2,{}}}'", to - from)),
            ("$10", format!("'{{2,{}}}'", to - from)),
            ("$9", format!("'{{12,{to}}}'")),
            ("$8", format!("'{{10,{from}}}'")),
            ("$7", format!("'{{{TOKEN},{token}}}'")),
            ("$6", format!("'{{3,{epoch}}}'")),
            ("$5", "'{0,1}'".to_owned()),
            ("$4", "'{t,t}'".to_owned()),
            ("$3", "gen_random_uuid()".to_owned()),
            ("$2", "1".to_owned()),
            ("$1", "'p'".to_owned()),
        ];
        for (parameter, value) in &values {
            sql = sql.replace(parameter, value);
        }
        let mut session = session(&world.db);
        session.run("BEGIN");
        let moved = session
            .rows::<(i32,)>(&format!("{sql} RETURNING p.partition"))
            .len();
        session.run("ROLLBACK");
        moved
    };
    let this = "pg_current_xact_id()::text";
    assert_eq!(advance(10, 12, 3, TOKEN, this, "generation"), 2);
    assert_eq!(
        advance(9, 12, 3, TOKEN, this, "generation"),
        1,
        "from before the position"
    );
    assert_eq!(
        advance(11, 12, 3, TOKEN, this, "generation"),
        1,
        "from behind the position"
    );
    assert_eq!(
        advance(10, 10, 3, TOKEN, this, "generation"),
        1,
        "not forward"
    );
    assert_eq!(
        advance(10, 12, 2, TOKEN, this, "generation"),
        1,
        "an older epoch"
    );
    assert_eq!(
        advance(10, 12, 4, TOKEN, this, "generation"),
        1,
        "an epoch that nobody has"
    );
    let other = "00000000-0000-0000-0000-00000000000b";
    assert_eq!(
        advance(10, 12, 3, other, this, "generation"),
        1,
        "another claim of the same epoch"
    );
    assert_eq!(
        advance(10, 12, 3, TOKEN, "'3'", "generation"),
        0,
        "another transaction"
    );
    assert_eq!(
        advance(10, 12, 3, TOKEN, this, "public"),
        0,
        "another schema of that name"
    );
}

// I3: a claim takes over and fences, and says where the former owner came.
#[test]
fn every_claim_has_a_newer_epoch_and_another_token() {
    let world = prepared();
    world.db.run(
        "INSERT INTO tidegate.projection VALUES ('p', 1);
         INSERT INTO tidegate.generation VALUES ('p', 1, 'live', 'p', 1, '', '');
         INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset) VALUES ('p', 1, 't', 0, 7)",
    );
    let mut claim = statement("position_claim.sql");
    for (parameter, value) in [
        ("$1", "'p'"),
        ("$2", "1"),
        ("$3", "'t'"),
        ("$4", "0"),
        ("$5", "'me'"),
        ("$6", "NULL"),
    ] {
        claim = claim.replace(parameter, value);
    }
    let mut claims: Vec<(i64, i64, String)> = Vec::new();
    for _ in 0..3 {
        let sql =
            format!("WITH c AS ({claim}) SELECT next_offset, epoch, claim_token::text FROM c");
        claims.extend(world.db.rows::<(i64, i64, String)>(&sql));
    }
    assert!(claims.iter().all(|(next, ..)| *next == 7));
    let epochs: Vec<i64> = claims.iter().map(|(_, epoch, _)| *epoch).collect();
    assert_eq!(epochs, [1, 2, 3]);
    assert!(claims[0].2 != claims[1].2 && claims[1].2 != claims[2].2);
}

// I6: a count that does not add up cannot be stored.
#[test]
fn an_account_that_does_not_add_up_is_refused() {
    let world = prepared();
    world.db.run(
        "INSERT INTO tidegate.projection VALUES ('p', 1);
         INSERT INTO tidegate.generation VALUES ('p', 1, 'live', 'p', 1, '', '');
         INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset) VALUES ('p', 1, 't', 0, 0)",
    );
    let refused = world
        .db
        .session()
        .try_run("UPDATE tidegate.position SET consumed = 3, applied = 2");
    assert!(
        refused
            .unwrap_err()
            .contains("every_record_is_accounted_for")
    );
}

// I5: an id that is in the outbox cannot be put there again, whoever tries.
#[test]
fn an_id_is_in_the_outbox_once() {
    let world = prepared();
    let mut session = world.db.session();
    let insert = "INSERT INTO tidegate.outbox (stream, number, id, topic, type, source)
                  VALUES ('s', (SELECT count(*) + 1 FROM tidegate.outbox), '00000000-0000-0000-0000-000000000001', 't', '', '')";
    session.run(insert);
    let refused = session.try_run(insert);
    assert!(refused.unwrap_err().contains("a_message_is_emitted_once"));
}
