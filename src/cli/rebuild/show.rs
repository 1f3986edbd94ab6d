//! What a rebuild's commands show.

use serde_json::{Value, json};

use crate::cli::output::{bytes, excerpt, number, table, time};
use crate::projection::only_entity;
use crate::runtime::{Plan, Standing, Verified};
use crate::store::compare::Compared;
use crate::store::generation::{Beside, Detached, Waiting};

/// Characters of a differing row.
const ROW_MAX: usize = 200;

pub(super) fn plan(name: &str, plan: &Plan) {
    partitions(plan);
    println!(
        "{} offsets to read beside generation {} of `{name}`, whose tables take {}; about as much is needed once more, Postgres does not say how much there is.",
        number(plan.records()),
        plan.live,
        bytes(plan.size)
    );
    for beside in plan.building.iter().chain(&plan.former) {
        println!("{}", told(beside));
    }
    for obstacle in &plan.obstacles {
        let may = match obstacle.may_be_accepted {
            true => "may be accepted",
            false => "in the way",
        };
        println!("{may}: {}; {}", obstacle.what, obstacle.cure);
    }
}

/// How somebody goes on who has left a build to the service.
pub(super) fn left_to_the_service(name: &str) {
    println!(
        "The service builds it: one process of `tidegate run` with this configuration, beside its live work.
  tidegate rebuild status {name}     how far it is, and what is in its way
  tidegate rebuild start {name}      takes it back, and goes on here
  tidegate rebuild cut-over {name}   compares and cuts over once it has caught up
  tidegate rebuild abandon {name}    gives it up"
    );
}

/// What the service does with what is being built.
fn service(beside: &Beside, taken: bool) -> Option<String> {
    let then = match beside.detached()? {
        Detached::Build => "",
        Detached::CutOverIfSame => ", and cuts over if nothing differs",
        Detached::CutOver => ", and cuts over whatever differs",
    };
    let who = match (taken, &*beside.trouble) {
        (true, _) => String::new(),
        (false, "") => format!("; {}", waits(&beside.waiting)),
        (false, _) => "; no process does at the moment".to_owned(),
    };
    let trouble = match &*beside.trouble {
        "" => String::new(),
        trouble => format!("\nit does not go on: {trouble}"),
    };
    Some(format!("the service builds it{then}{who}{trouble}"))
}

/// Since when nobody builds what was left to the service, and what is missing.
pub(in crate::cli) fn waits(waiting: &Waiting) -> String {
    let since = waiting
        .left_at
        .map_or_else(String::new, |at| format!(" (left to it {})", time(at)));
    let missing = match &*waiting.declined {
        "" => {
            "it takes one of `tidegate run` with its configuration; the log of one that has it says what is in its way"
        }
        declined => declined,
    };
    format!("no process does at the moment{since}: {missing}")
}

pub(in crate::cli) fn waiting_json(waiting: &Waiting) -> Value {
    let since = waiting.left_at.map(|at| at.to_rfc3339());
    json!({ "left_at": since, "declined": waiting.declined })
}

/// What is read of each partition.
pub(super) fn partitions(plan: &Plan) {
    let mut partitions = table(
        &["partition", "reads from", "up to", "offsets"],
        &["reads from", "up to", "offsets"],
    );
    for planned in &plan.partitions {
        partitions.add_row([
            planned.partition.to_string(),
            number(planned.from),
            number(planned.to),
            number((planned.to - planned.from).max(0)),
        ]);
    }
    println!("{partitions}");
}

fn told(beside: &Beside) -> String {
    let (number, schema) = (beside.number, &beside.schema_name);
    match (beside.is_building(), beside.live_at) {
        (true, None) => format!(
            "generation {number} is being built{} in schema `{schema}` since {}",
            match only_entity(&beside.definition) {
                Some(entity) => format!(" of entity `{entity}` alone"),
                None => String::new(),
            },
            time(beside.started_at)
        ),
        (true, Some(at)) => format!(
            "generation {number}, live since {} before, is being brought up to date in schema `{schema}`",
            time(at)
        ),
        (false, at) => format!(
            "generation {number} is kept in schema `{schema}`; it became live {}",
            at.map_or_else(|| "never".to_owned(), time)
        ),
    }
}

pub(super) fn status(name: &str, standing: &Standing, as_json: bool) {
    let progress = standing.progress.as_ref();
    if as_json {
        let share = |share: &crate::runtime::Share| {
            json!({
                "topic": share.partition.topic(), "partition": share.partition.partition(),
                "next_offset": share.next, "live_next_offset": share.live,
            })
        };
        let beside = |beside: &Beside| {
            json!({
                "generation": beside.number, "building": beside.is_building(), "schema": beside.schema_name,
                "definition": beside.definition, "started_at": beside.started_at.to_rfc3339(),
                "live_at": beside.live_at.map(|at| at.to_rfc3339()),
                "detached": beside.detached().map(Detached::name), "trouble": beside.trouble,
                "waiting": beside.detached().map(|_| waiting_json(&beside.waiting)),
            })
        };
        let all = json!({
            "projection": name, "live_generation": standing.live,
            "beside": standing.beside.iter().map(beside).collect::<Vec<_>>(),
            "partitions": progress.map(|p| p.shares.iter().map(share).collect::<Vec<_>>()),
            "remaining": progress.map(|p| p.remaining()), "taken": standing.taken,
            "halted": progress.and_then(|p| p.halted.as_ref()).map(|(p, cause)| json!({ "partition": p.to_string(), "cause": cause })),
        });
        println!("{all:#}");
        return;
    }
    println!("generation {} of `{name}` is live", standing.live);
    for beside in &standing.beside {
        println!("{}", told(beside));
        if let Some(service) = service(beside, standing.taken) {
            println!("{service}");
        }
    }
    let Some(progress) = progress else {
        println!("nothing is being built");
        return;
    };
    let mut partitions = table(
        &["partition", "built up to", "live", "left"],
        &["built up to", "live", "left"],
    );
    for share in &progress.shares {
        partitions.add_row([
            share.partition.to_string(),
            number(share.next),
            number(share.live),
            number((share.live - share.next).max(0)),
        ]);
    }
    println!("{partitions}");
    let is_told = standing
        .beside
        .iter()
        .any(|beside| !beside.trouble.is_empty());
    if let (Some((partition, cause)), false) = (&progress.halted, is_told) {
        println!("halted: {partition}: {cause}");
    }
}

pub(super) fn verified(verified: &Verified) {
    let mut tables = table(
        &["table", "rows live", "rows built", ""],
        &["rows live", "rows built"],
    );
    for compared in &verified.tables {
        let count = |rows: Option<i64>| rows.map_or_else(|| "none".to_owned(), number);
        let name = match &*compared.table {
            "_gate" => "sequences of entities",
            name => name,
        };
        let verdict = if compared.same { "same" } else { "DIFFERS" };
        tables.add_row([name, &count(compared.live), &count(compared.new), verdict]);
    }
    println!("{tables}");
    verified.tables.iter().for_each(differences);
    println!(
        "compared at the same positions, {} offsets in",
        number(verified.at)
    );
}

fn differences(compared: &Compared) {
    let table = &compared.table;
    if !compared.not_compared.is_empty() {
        println!(
            "{table}: not compared, since both do not have them with one type: {}",
            compared.not_compared.join(", ")
        );
    }
    for (side, rows) in [("live", &compared.only_live), ("built", &compared.only_new)] {
        for row in rows {
            println!("{table}, only {side}: {}", excerpt(row, ROW_MAX));
        }
    }
}
