//! `tidegate verify`: the account of every record, proved from the tables (I6).

use serde_json::json;

use super::output::{number, table, time};
use super::{CODE_NEEDS_A_PERSON, ConfigArgument, Done, Failed, connect, database};
use crate::store::dead_letter::Account as Letters;
use crate::store::outbox::Account;
use crate::store::position::Status as Position;
use crate::store::skipped::Skipped;
use crate::store::{dead_letter, outbox, position, skipped, transaction};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// One thing that must hold.
struct Claim {
    what: String,
    detail: String,
    holds: bool,
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    let config = arguments.config.load()?;
    let mut connection = connect(&database(&config)?).await?;
    // All of one moment, however busy the service is.
    transaction::begin_snapshot(&mut connection).await?;
    let positions = position::status(&mut connection).await?;
    let streams = outbox::account(&mut connection).await?;
    let letters = dead_letter::account(&mut connection).await?;
    let skipped = skipped::read(&mut connection).await?;
    let claims: Vec<Claim> = positions
        .iter()
        .map(|row| account(row, &letters))
        .chain(outbox_claims(&streams))
        .collect();
    let broken = claims.iter().filter(|claim| !claim.holds).count();
    if arguments.json {
        let claim = |c: &Claim| json!({ "claim": c.what, "detail": c.detail, "holds": c.holds });
        let claims: Vec<_> = claims.iter().map(claim).collect();
        let skipped: Vec<_> = skipped.iter().map(skipped_json).collect();
        let all = json!({ "holds": broken == 0, "claims": claims, "skipped": skipped });
        println!("{all:#}");
    } else {
        let mut table = table(&["claim", "found", ""], &[]);
        for claim in &claims {
            let verdict = if claim.holds { "holds" } else { "BROKEN" };
            table.add_row([&*claim.what, &*claim.detail, verdict]);
        }
        println!("{table}");
        for range in &skipped {
            println!(
                "skipped: {} {}[{}] offsets {} to {}, by {}, {}",
                range.projection,
                range.topic,
                range.partition,
                number(range.from_offset),
                number(range.to_offset - 1),
                range.who,
                time(range.at)
            );
        }
    }
    match broken {
        0 => Ok(()),
        broken => Err(Failed::new(
            CODE_NEEDS_A_PERSON,
            anyhow::anyhow!("{broken} of {} claims do not hold", claims.len()),
        )),
    }
}

/// consumed = applied + stale + duplicate + filtered + parked, in every partition, and every parked record is kept.
fn account(row: &Position, letters: &[Letters]) -> Claim {
    let parts = [
        ("applied", row.applied),
        ("stale", row.stale),
        ("duplicate", row.duplicate),
        ("filtered", row.filtered),
        ("parked", row.parked),
    ];
    let shown: Vec<String> = parts
        .iter()
        .filter(|(name, count)| *name == "applied" || *count > 0)
        .map(|(name, count)| format!("{} {name}", number(*count)))
        .collect();
    Claim {
        what: format!(
            "{}: every record of {}[{}] is accounted for",
            row.projection, row.topic, row.partition
        ),
        detail: format!("{} = {}", number(row.consumed), shown.join(" + ")),
        holds: row.consumed == parts.iter().map(|(_, count)| count).sum::<i64>()
            && row.parked == letters_of(row, letters),
    }
}

/// The dead letters of a partition: one for each record that was parked, for ever.
fn letters_of(row: &Position, letters: &[Letters]) -> i64 {
    letters
        .iter()
        .filter(|l| {
            l.projection == row.projection && l.topic == row.topic && l.partition == row.partition
        })
        .map(|l| l.letters)
        .sum()
}

/// A range that was left out on purpose.
fn skipped_json(range: &Skipped) -> serde_json::Value {
    json!({
        "projection": range.projection, "topic": range.topic, "partition": range.partition,
        "from_offset": range.from_offset, "to_offset": range.to_offset, "who": range.who,
        "at": range.at.to_rfc3339(),
    })
}

/// Numbers are dense, and nothing is marked as sent that was never emitted.
fn outbox_claims(streams: &[Account]) -> [Claim; 2] {
    // Sent messages are removed from the front, apart from those in quarantine. As many as there are numbers behind
    // that, all different and none above the counter: no number is missing.
    let dense = |stream: &&Account| {
        stream.kept == stream.emitted - stream.removed_through
            && stream.highest <= stream.emitted
            && stream.kept_before == stream.quarantined_before
    };
    let sent = |stream: &&Account| stream.sent_through <= stream.emitted;
    let total = |pick: fn(&Account) -> i64| number(streams.iter().map(pick).sum::<i64>());
    let claim = |what: &str, found: String, holds: &dyn Fn(&&Account) -> bool| {
        let broken: Vec<&str> = streams
            .iter()
            .filter(|stream| !holds(stream))
            .map(|stream| &*stream.stream)
            .collect();
        let detail = match broken.is_empty() {
            true => format!("{found}, in {} streams", streams.len()),
            false => format!("{found}; not in {}", broken.join(", ")),
        };
        Claim {
            what: format!("outbox: {what}"),
            detail,
            holds: broken.is_empty(),
        }
    };
    [
        claim(
            "numbers are dense",
            format!(
                "{} emitted, {} kept, {} removed",
                total(|s| s.emitted),
                total(|s| s.kept + s.kept_before),
                total(|s| s.removed_through - s.kept_before)
            ),
            &dense,
        ),
        claim(
            "nothing is sent that was not emitted",
            format!("{} sent", total(|s| s.sent_through)),
            &sent,
        ),
    ]
}
