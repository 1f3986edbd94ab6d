//! What folds are made into.

use super::*;
use crate::projection::{Gate, Projection, Source};

#[derive(sqlx::FromRow)]
struct Row {
    amount: i64,
    note: Option<String>,
}

impl State for Row {
    const TABLE: &'static str = "my \"table\"";
    const KEY: &'static str = "entity";

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("amount", |row| row.amount);
        columns.column("note", |row| row.note.as_deref());
    }
}

#[derive(sqlx::FromRow)]
struct Bare {}

impl State for Bare {
    const TABLE: &'static str = "bare";
    const KEY: &'static str = "entity";

    fn columns(_: &mut Columns<'_, Self>) {}
}

struct Keep<S>(std::marker::PhantomData<fn() -> S>);

impl<S: State> Fold for Keep<S> {
    type State = S;

    fn fold(
        &self,
        state: Option<S>,
        _: &Event<'_>,
        _: &mut Messages,
    ) -> Result<Option<S>, HandlerError> {
        Ok(state)
    }
}

fn keep<S: State>() -> Keep<S> {
    Keep(std::marker::PhantomData)
}

#[test]
fn what_another_role_writes_is_not_written_from_memory() {
    let fold = || Projection::fold("p", 1, &["t"], Gate::Newest, keep::<Row>());
    assert!(fold().bulk().is_some());
    assert!(fold().role("other").bulk().is_none());
}

#[test]
fn statements_name_all_columns_once_in_one_order() {
    let folded = Folded::new(keep::<Row>());
    assert_eq!(
        &*folded.load,
        r#"SELECT "entity", "amount", "note" FROM "my ""table""" WHERE "entity" = ANY ($1)"#
    );
    assert_eq!(
        &*folded.store,
        r#"INSERT INTO "my ""table""" ("entity", "amount", "note") SELECT unnest($1), unnest($2), unnest($3) ON CONFLICT ("entity") DO UPDATE SET "amount" = excluded."amount", "note" = excluded."note""#
    );
    let bare = Folded::new(keep::<Bare>());
    assert_eq!(
        &*bare.store,
        r#"INSERT INTO "bare" ("entity") SELECT unnest($1) ON CONFLICT ("entity") DO NOTHING"#
    );
}

#[test]
fn a_fold_needs_an_entity_whatever_its_gate() {
    let problems = |gate| {
        let projection = Projection::fold("p", 1, &["t"], gate, keep::<Bare>());
        let without: Vec<String> = projection
            .problems()
            .iter()
            .map(|p| p.to_string())
            .collect();
        let with = projection.entity(Source::Key).sequence(Source::Key);
        assert!(with.problems().is_empty());
        without.len()
    };
    assert_eq!([Gate::None, Gate::Newest, Gate::NEXT].map(problems), [1; 3]);
}
