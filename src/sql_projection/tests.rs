//! The lexer, and the text that is sent.

use proptest::prelude::*;

use super::lexer::{Lexed, With, last_word, statements, word_at};
use super::*;
use crate::projection::{ColumnType, EntityType, Source};

fn columns() -> Vec<Column> {
    let column = |name: &str, column_type| Column {
        name: name.to_owned(),
        column_type,
        source: Source::Key,
        nullable: false,
        default: None,
        unit: None,
    };
    vec![
        column("account", ColumnType::Uuid),
        column("amount", ColumnType::Numeric),
        column("memo", ColumnType::Jsonb),
    ]
}

fn statement(sql: &str) -> Result<Statement, (String, usize)> {
    let text = SqlText {
        sql: sql.to_owned(),
        label: "apply 1".to_owned(),
        per_event: false,
        types: None,
    };
    Statement::new(text, &columns(), false, EntityType::Text)
}

/// The statement as it is sent.
#[track_caller]
fn check(sql: &str, sent: &str) {
    assert_eq!(&*statement(sql).unwrap().wrapped, sent);
}

/// The beginning of the reason, and the text that it points at.
#[track_caller]
fn check_refused(sql: &str, why: &str, at: &str) {
    let (found, position) = statement(sql).unwrap_err();
    assert!(found.starts_with(why), "{found}");
    let rest: String = sql.chars().skip(position).collect();
    assert!(rest.starts_with(at), "points at `{rest}`");
}

/// The columns sent, `latest` after `events`; `*` for all.
#[track_caller]
fn check_columns(sql: &str, expected: &[&str]) {
    let statement = statement(sql).unwrap();
    let columns = columns();
    // `_previous` is there with the gate in the row only.
    let all = columns.len() + OWN_COLUMNS.len() - 1;
    let mut found = Vec::new();
    for relation in &statement.relations {
        if relation.parameters.len() == all {
            found.push("*");
            continue;
        }
        found.extend(relation.parameters.iter().map(|parameter| match parameter {
            Parameter::Own(i) => OWN_COLUMNS[*i].0,
            Parameter::Declared(i) => &*columns[*i].name,
        }));
    }
    assert_eq!(found, expected, "{sql}");
}

/// A piece of the wrapped statement, as Postgres would point at it, is found in the user's text.
#[track_caller]
fn check_position(sql: &str, piece: &str) {
    let statement = statement(sql).unwrap();
    let byte = statement.wrapped.rfind(piece).unwrap();
    let sent = statement.wrapped[..byte].chars().count() + 1;
    let position = statement.position(sent).unwrap();
    let rest: String = sql.chars().skip(position).collect();
    assert!(rest.starts_with(piece), "points at `{rest}`");
}

#[test]
fn the_arrays_come_first() {
    check(
        "INSERT INTO b SELECT account, amount FROM events",
        "WITH events AS (SELECT unnest($1::uuid[]) AS account, unnest($2::text[])::numeric AS amount) INSERT INTO b SELECT account, amount FROM events",
    );
    check(
        "  -- why\n  DELETE FROM b USING latest WHERE b.id = latest.account ; -- bye",
        "WITH latest AS (SELECT unnest($1::uuid[]) AS account) DELETE FROM b USING latest WHERE b.id = latest.account ",
    );
}

#[test]
fn both_relations_have_arrays_of_their_own() {
    check(
        "SELECT memo FROM events UNION ALL SELECT memo FROM latest",
        "WITH events AS (SELECT unnest($1::text[])::jsonb AS memo), latest AS (SELECT unnest($2::text[])::jsonb AS memo) SELECT memo FROM events UNION ALL SELECT memo FROM latest",
    );
}

#[test]
fn a_with_is_spliced() {
    check(
        "WITH x AS (SELECT _ref FROM events) SELECT * FROM x",
        "WITH events AS (SELECT unnest($1::uuid[]) AS account, unnest($2::text[])::numeric AS amount, unnest($3::text[])::jsonb AS memo, unnest($4::bigint[]) AS _ref, unnest($5::text[]) AS _entity, unnest($6::bigint[]) AS _sequence, unnest($7::text[]) AS _topic, unnest($8::integer[]) AS _partition, unnest($9::bigint[]) AS _offset, unnest($10::timestamptz[]) AS _timestamp, unnest($11::text[]) AS _type, unnest($12::boolean[]) AS _tombstone),  x AS (SELECT _ref FROM events) SELECT * FROM x",
    );
    check(
        "/* c */ with /* d */ Recursive r AS (SELECT _ref FROM events) SELECT _ref FROM r",
        "WITH RECURSIVE events AS (SELECT unnest($1::bigint[]) AS _ref),  r AS (SELECT _ref FROM events) SELECT _ref FROM r",
    );
    // A WITH inside is none of ours.
    check(
        "INSERT INTO t WITH x AS (SELECT _ref FROM events) SELECT _ref FROM x",
        "WITH events AS (SELECT unnest($1::bigint[]) AS _ref) INSERT INTO t WITH x AS (SELECT _ref FROM events) SELECT _ref FROM x",
    );
}

/// Where the prefix goes, and what the statement begins with.
#[track_caller]
fn check_cut(sql: &str, with: With, tail: &str) {
    let lexed = Lexed::new(sql).unwrap();
    assert_eq!((lexed.with, &sql[lexed.cut..lexed.end]), (with, tail));
}

#[test]
fn comments_and_blanks_before_the_statement_are_passed_over() {
    check_cut("SELECT 1", With::None, "SELECT 1");
    check_cut("\u{feff}SELECT 1", With::None, "\u{feff}SELECT 1");
    check_cut("-- WITH\nSELECT 1", With::None, "SELECT 1");
    check_cut("/* a /* b */ ' */ SELECT 1", With::None, "SELECT 1");
    check_cut(
        "--\n/**/\tWITH x AS (SELECT 1) TABLE x",
        With::Plain,
        " x AS (SELECT 1) TABLE x",
    );
    check_cut("WITH\nRECURSIVE x AS", With::Recursive, " x AS");
    check_cut("within", With::None, "within");
    check_cut("SELECT 1 ; /* end */ ", With::None, "SELECT 1 ");
    check_cut("SELECT ';' -- ;", With::None, "SELECT ';' -- ;");
}

/// The words that are looked for; the text holds `a` as a word and `b` only where it is none.
#[track_caller]
fn check_words(sql: &str) {
    let lexed = Lexed::new(sql).unwrap_or_else(|(why, at)| panic!("{sql}: {why} at {at}"));
    assert!(lexed.names("a"), "{sql} names a");
    assert!(!lexed.names("b"), "{sql} does not name b");
}

#[test]
fn strings_and_comments_hold_no_words() {
    check_words("select 'b' , a");
    check_words("select 'it''s b', a");
    check_words("select 'b\\', a");
    check_words("select E'\\' b', a");
    check_words("select e'\\\\', a, 'b'");
    check_words("select e'' ' b', a");
    check_words("select U&'\\0062 b', a");
    check_words("select $$ b ' $$, a");
    check_words("select $tag$ b $$ $ta$ b $tag$, a");
    check_words("select $ä$ b $ä$, a");
    check_words("select a -- b");
    check_words("select a /* b /* b */ b */");
    check_words("select a, '/*' , '*/' -- b");
    check_words("select 'ü', a, 'ü b'");
    check_words("select ab, b_, _b, b1, äb, bä, b$1, a");
    check_words("select 1b, a");
    check_words("select 💰b, b💰, b\u{a0}b, a");
    check_words("select a -- b\r, a");
    check_words("select 💰e'\\', a, 'b'");
}

#[test]
fn names_are_folded_unless_quoted() {
    check_words("select A, \"B\"");
    check_words("select \"a\", \"b \"\" b\"");
    check_words("select x.a, \"x b\"");
}

#[test]
fn what_has_no_end_is_refused() {
    check_refused("SELECT 'x", "a string does not end", "'x");
    check_refused("SELECT ü, E'x\\'", "a string does not end", "'x");
    check_refused("SELECT \"x", "a quoted name does not end", "\"x");
    check_refused(
        "SELECT $a$ x $b$",
        "a dollar-quoted string does not end",
        "$a$",
    );
    check_refused("SELECT /* /* */", "a comment does not end", "/* /*");
    check_refused("", "the statement is empty", "");
    check_refused(
        "SELECT 'ü\0' FROM events",
        "a statement cannot hold a NUL",
        "\0",
    );
    check_refused(" -- nothing\n", "the statement is empty", "");
}

#[test]
fn what_cannot_be_wrapped_is_refused() {
    check_refused("SELECT ä, $1 FROM events", "`$n` would name", "$1");
    check_refused(
        "(SELECT _ref FROM events)",
        "a statement cannot begin with `(`",
        "(",
    );
    check_refused(
        "DELETE FROM x USING events; DELETE FROM y",
        "more than one statement",
        "; DELETE FROM y",
    );
    check_refused("SELECT 1 FROM events;;", "more than one statement", ";;");
    check_refused("SELECT 1", "the statement reads neither", "");
    check_refused("SELECT 'events'", "the statement reads neither", "");
    let own = "`events` and `latest` are tidegate's";
    check_refused("INSERT INTO events SELECT 1", own, "events SELECT");
    check_refused("UPDATE latest SET a = 1", own, "latest SET");
    check_refused("UPDATE ONLY events SET a = 1", own, "events SET");
    check_refused("DELETE FROM events WHERE true", own, "events WHERE");
    check_refused("DELETE FROM ONLY latest", own, "latest");
    check_refused(
        "WITH events AS (SELECT 1) SELECT 1 FROM events",
        own,
        "events AS",
    );
    check_refused(
        "WITH \"latest\" AS (SELECT 1) SELECT 1 FROM events",
        own,
        "\"latest\" AS",
    );
}

#[test]
fn a_statement_may_look_like_what_is_refused() {
    for sql in [
        "SELECT '$1', \"$1\", a$1 FROM events -- $1",
        "SELECT _ref AS events FROM events",
        "INSERT INTO my.events SELECT amount FROM events",
        "SELECT ';' FROM events;",
        "SELECT 1 FROM events AS e (a)",
    ] {
        assert!(statement(sql).is_ok(), "{sql}");
    }
}

#[test]
fn another_thing_of_the_name_is_no_relation_of_ours() {
    for sql in [
        "SELECT b.latest, max(amount) AS latest FROM events, b",
        "SELECT b.\"latest\" FROM my.latest AS b JOIN events ON true",
    ] {
        assert!(!statement(sql).unwrap().reads_latest(), "{sql}");
    }
    for sql in [
        "SELECT latest.amount FROM latest",
        "SELECT 1 FROM events, latest",
        "SELECT latest AS latest FROM events JOIN latest USING (_ref)",
    ] {
        assert!(statement(sql).unwrap().reads_latest(), "{sql}");
    }
    check_refused("SELECT 1 FROM my.events", "the statement reads neither", "");
}

#[test]
fn a_refused_update_is_shown_where_it_reads_events() {
    check_refused(
        "UPDATE b SET x = 'ü' FROM events e WHERE b.id = e.account",
        "`UPDATE .. FROM events` applies one of several",
        "events e",
    );
}

#[track_caller]
fn check_update(sql: &str, refused: bool) {
    let found = statement(sql);
    match refused {
        true => assert!(
            found.unwrap_err().0.starts_with("`UPDATE .. FROM events`"),
            "{sql}"
        ),
        false => assert!(found.is_ok(), "{sql}: {found:?}"),
    }
}

#[test]
fn an_update_that_would_drop_events_is_refused() {
    check_update(
        "UPDATE b SET x = e.amount FROM events e WHERE b.id = e.account",
        true,
    );
    check_update("update b set x = 1 from t, events where true", true);
    check_update("UPDATE b SET x = 1 FROM t JOIN events ON true", true);
    check_update("UPDATE b SET x = y IS DISTINCT FROM z FROM events", true);
    check_update("UPDATE b SET x = 1 FROM \"events\"", true);
    check_update(
        "WITH u AS (UPDATE b SET x = 1 FROM events RETURNING 1) SELECT 1 FROM u",
        true,
    );
    check_update("WITH e AS (SELECT 1) UPDATE b SET x = 1 FROM events", true);
}

#[test]
fn an_update_that_sees_each_row_once_is_allowed() {
    check_update(
        "UPDATE b SET x = l.amount FROM latest l WHERE b.id = l.account",
        false,
    );
    check_update(
        "UPDATE b SET x = e.s FROM (SELECT account, sum(amount) AS s FROM events GROUP BY 1) e WHERE b.id = e.account",
        false,
    );
    check_update("UPDATE b SET x = (SELECT max(amount) FROM events)", false);
    check_update(
        "UPDATE b SET x = 1 WHERE id IN (SELECT account FROM events)",
        false,
    );
    check_update(
        "INSERT INTO b SELECT account FROM events ON CONFLICT (id) DO UPDATE SET x = b.x + 1 WHERE b.x IS DISTINCT FROM excluded.x",
        false,
    );
    check_update(
        "WITH i AS (INSERT INTO b SELECT account FROM events ON CONFLICT (id) DO UPDATE SET x = 1), s AS (SELECT 1 FROM events) SELECT 1",
        false,
    );
    check_update(
        "WITH l AS (SELECT 1 FROM b FOR UPDATE), s AS (SELECT 1 FROM events) SELECT 1 FROM s",
        false,
    );
    check_update(
        "MERGE INTO b USING events e ON b.id = e.account WHEN MATCHED THEN UPDATE SET x = 1",
        false,
    );
}

#[test]
fn per_event_allows_any_update() {
    let text = SqlText {
        sql: "UPDATE b SET x = amount FROM events".to_owned(),
        label: "apply 1".to_owned(),
        per_event: true,
        types: None,
    };
    assert!(Statement::new(text, &columns(), false, EntityType::Text).is_ok());
}

#[test]
fn only_the_columns_that_are_named_are_sent() {
    check_columns("SELECT count(*) FROM events", &["_ref"]);
    check_columns("SELECT sum(Amount) FROM events", &["amount"]);
    check_columns(
        "SELECT \"amount\", _offset FROM events",
        &["amount", "_offset"],
    );
    check_columns("SELECT 'amount', \"Amount\" FROM events", &["_ref"]);
    check_columns(
        "SELECT 2 * amount * 3, (amount) * 2 FROM events",
        &["amount"],
    );
    check_columns(
        "SELECT e.account FROM events AS e JOIN b USING (account)",
        &["account"],
    );
    check_columns("SELECT amount FROM latest", &["amount"]);
    check_columns(
        "SELECT amount FROM events JOIN latest USING (_ref)",
        &["amount", "_ref", "amount", "_ref"],
    );
    check_columns(
        "SELECT e.account FROM events e WHERE e.amount > 0",
        &["account", "amount"],
    );
    check_columns(
        "SELECT amount FROM events WHERE amount > 0 UNION SELECT amount FROM events WHERE true",
        &["amount"],
    );
    check_columns(
        "SELECT events.amount FROM events GROUP BY events.amount",
        &["amount"],
    );
    check_columns(
        "SELECT to_jsonb(amount), array_agg(_ref) FROM events",
        &["amount", "_ref"],
    );
    check_columns(
        "SELECT to_jsonb(x) FROM (SELECT amount FROM events) x",
        &["amount"],
    );
    check_columns(
        "MERGE INTO b USING events AS e ON b.id = e.account WHEN MATCHED THEN DELETE",
        &["account"],
    );
}

#[test]
fn what_needs_every_column_gets_every_column() {
    for sql in [
        "SELECT * FROM events",
        "SELECT _ref, * FROM events",
        "SELECT DISTINCT * FROM events",
        "SELECT e.* FROM events e",
        "SELECT e . * FROM events e",
        "INSERT INTO b TABLE events",
        "SELECT to_jsonb(e) FROM events e",
        "SELECT row_to_json(events) FROM events",
        "SELECT 1 FROM events NATURAL JOIN b",
        "SELECT DISTINCT ON (account) * FROM events",
        "SELECT DISTINCT ON (account) *, 1 FROM events",
        "SELECT jsonb_build_object('event', e) FROM events e",
        "SELECT e FROM latest AS e WHERE _ref > 1",
        "SELECT count(DISTINCT e) FROM b JOIN events e ON true",
        "SELECT (e).account FROM events e",
        "SELECT e::text FROM b CROSS JOIN events e",
        "SELECT 1 FROM events e WHERE e IS NOT NULL",
        "SELECT events FROM events",
        "SELECT a FROM events AS e (a, b)",
    ] {
        check_columns(sql, &["*"]);
    }
}

#[test]
fn an_error_is_placed_in_the_users_text() {
    check_position("SELECT amont FROM events", "amont");
    check_position("-- prüfen\nSELECT 'ü💰', amont FROM events", "amont");
    check_position(
        "WITH x AS (SELECT amont FROM events) SELECT _ref FROM x",
        "amont",
    );
    check_position(
        "/* ü */ WITH RECURSIVE ü AS (SELECT amont FROM events) SELECT _ref FROM ü",
        "amont",
    );
    check_position("SELECT 1 FROM events GROUPED", "GROUPED");
    check_position("  SELECT 1 FROM events", "SELECT 1");
}

#[test]
fn an_error_in_the_prefix_is_not_placed_in_the_users_text() {
    for sql in [
        "SELECT 1 FROM events",
        "/* a long comment before */ WITH x AS (TABLE events) TABLE x",
    ] {
        let statement = statement(sql).unwrap();
        for sent in 0..=statement.prefix {
            assert_eq!(statement.position(sent), None);
        }
        assert!(statement.position(statement.prefix + 1).is_some());
    }
}

/// Where a script ends its transaction, if it does.
#[track_caller]
fn check_script(script: &str, at: Option<&str>) {
    let found = script_problem(script).map(|(_, position)| {
        let rest: String = script.chars().skip(position).collect();
        rest
    });
    match (found, at) {
        (Some(rest), Some(at)) => assert!(rest.starts_with(at), "points at `{rest}`"),
        (found, at) => assert_eq!(found.as_deref(), at, "{script}"),
    }
}

#[test]
fn a_script_must_not_end_its_transaction() {
    check_script("CREATE TABLE ü (); COMMIT", Some("COMMIT"));
    check_script("-- begin\nrollback; SELECT 1", Some("rollback;"));
    check_script("END;", Some("END"));
    check_script("ABORT", Some("ABORT"));
    check_script("PREPARE TRANSACTION 'x'", Some("PREPARE"));
    check_script("SELECT '\0'", Some("\0"));
    check_script("ROLLBACK TO SAVEPOINT s; ROLLBACK WORK TO s", None);
    check_script("PREPARE p AS SELECT 1", None);
    check_script(
        "CREATE TABLE t (\"commit\" text); COMMENT ON TABLE t IS 'commit'",
        None,
    );
    check_script(
        "CREATE FUNCTION f() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT 1; END;",
        None,
    );
    check_script("DO $$ BEGIN COMMIT; END $$", None);
    check_script("'not terminated", None);
}

#[test]
fn the_statements_of_a_script_are_told_apart() {
    let script = "-- ü;\nSELECT ';ä' ;; SELECT $$;$$; /* ; */ SELECT 3 -- end";
    let expected = vec![
        (6, "SELECT ';ä' "),
        (21, "SELECT $$;$$"),
        (43, "SELECT 3 -- end"),
    ];
    assert_eq!(statements(script), Some(expected));
    assert_eq!(statements(" ; ;"), Some(Vec::new()));
    assert_eq!(
        statements("CREATE FUNCTION f() .. BEGIN ATOMIC a; b; END"),
        None
    );
}

#[test]
fn words_are_found_by_name_and_by_place() {
    let sql = "SELECT 'ü payload', a AS payload, 'payload' FROM payloads";
    assert_eq!(last_word(sql, "payload"), Some(25));
    assert_eq!(last_word(sql, "key"), None);
    assert_eq!(word_at(sql, 25).as_deref(), Some("payload"));
    assert_eq!(word_at(sql, 26), None);
    assert_eq!(word_at(sql, 1000), None);
}

proptest! {
    #[test]
    fn no_text_makes_the_lexer_panic(sql in any::<String>()) {
        let _ = Lexed::new(&sql);
        let _ = statement(&sql);
        let _ = script_problem(&sql);
        let _ = statements(&sql);
    }

    #[test]
    fn nothing_like_sql_makes_the_lexer_panic(sql in r#"([eE]?'|"|\$[aä1]?\$?|--|/\*|\*/|[;()*.,\\ \n]|WITH|RECURSIVE|UPDATE|FROM|events|latest|AS|ü|💰|\u{a0}){0,24}"#) {
        let _ = Lexed::new(&sql);
        if let Ok(statement) = statement(&sql) {
            // Every place that Postgres could name is one of the user's text, or none.
            for sent in 0..=statement.wrapped.chars().count() + 1 {
                if let Some(position) = statement.position(sent) {
                    prop_assert!(position <= sql.chars().count());
                }
            }
        }
    }
}

#[track_caller]
fn check_one_relation(sql: &str, expected: bool) {
    let lexed = super::lexer::Lexed::new(sql).unwrap();
    assert_eq!(lexed.reads_one_relation, expected, "{sql}");
}

#[test]
fn only_a_statement_that_reads_nothing_else_is_planned_once() {
    for tail in [
        "",
        " WHERE amount > 0 GROUP BY account, memo",
        " e GROUP BY account, memo",
        " AS e ORDER BY account, memo ON CONFLICT DO NOTHING",
    ] {
        check_one_relation(
            &format!("INSERT INTO b SELECT account FROM events{tail}"),
            true,
        );
    }
    check_one_relation(
        "INSERT INTO b SELECT account FROM latest ON CONFLICT (id, x) DO NOTHING",
        true,
    );
    for sql in [
        "INSERT INTO b SELECT 1 FROM events, b",
        "INSERT INTO b SELECT 1 FROM events e, b",
        "INSERT INTO b SELECT 1 FROM events AS e, b",
        "INSERT INTO b SELECT 1 FROM b, events",
        "INSERT INTO b SELECT 1 FROM events JOIN b USING (account)",
        "INSERT INTO b SELECT 1 FROM events WHERE account IN (SELECT account FROM b)",
        "INSERT INTO b WITH x AS (SELECT 1 FROM events) SELECT 1 FROM x",
        "UPDATE b SET x = 1 FROM latest WHERE b.id = latest.account",
        "SELECT _ref, account AS payload FROM events",
    ] {
        check_one_relation(sql, false);
    }
}

#[test]
fn what_a_row_carried_before_can_be_named_only_where_rows_carry_the_gate() {
    let statement = |gate_in| {
        let text = SqlText {
            sql: "INSERT INTO b SELECT max(_previous) FROM events".to_owned(),
            label: "apply 1".to_owned(),
            per_event: false,
            types: None,
        };
        let statement = Statement::new(text, &columns(), gate_in, EntityType::Text).unwrap();
        statement.sql().0.contains("AS _previous")
    };
    assert_eq!([false, true].map(statement), [false, true]);
}
