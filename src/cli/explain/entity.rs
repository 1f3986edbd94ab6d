//! What is known of one entity.

use serde_json::json;
use sqlx::PgConnection;

use super::{
    Answer, drop_json, drop_text, gate_json, gate_text, letter_json, letter_text, stands, time,
};
use crate::projection::{Gate, Projection};
use crate::store;
use crate::store::dead_letter::{self, Kept, OfEntity};
use crate::store::gate::Stands;
use crate::store::history::{self, Drop};

/// Letters and drops that are shown, at most.
const WAITING_MAX: i64 = 20;
const LAST_MAX: i64 = 5;

/// All that is stored about it.
struct Found<'a> {
    entity: &'a str,
    stands: Option<Stands>,
    waiting: i64,
    letters: Vec<Kept>,
    resolved: Vec<Kept>,
    dropped: Vec<Drop>,
    waits_for: Option<String>,
}

pub(super) async fn answer(
    connection: &mut PgConnection,
    projection: &Projection,
    generation: i32,
    entity: &str,
) -> Result<Answer, store::Error> {
    let name = projection.name();
    let waiting = dead_letter::remaining(connection, name, generation, &[entity]).await?;
    let by_sequence = matches!(projection.gate, Gate::Next { .. });
    let waits = OfEntity::Waiting { by_sequence };
    let letters =
        dead_letter::of_entity(connection, name, generation, entity, waits, WAITING_MAX).await?;
    let resolved = OfEntity::Resolved;
    let resolved =
        dead_letter::of_entity(connection, name, generation, entity, resolved, LAST_MAX).await?;
    let mut found = Found {
        entity,
        stands: stands(connection, projection, entity).await?,
        waiting: waiting.get(entity).copied().unwrap_or(0),
        resolved,
        dropped: history::dropped_of_entity(connection, name, generation, entity, LAST_MAX).await?,
        letters,
        waits_for: None,
    };
    // Under gate `next` the lowest number that waits may be further on than the next one.
    let beyond = match (&projection.gate, &found.stands) {
        (Gate::Next { .. }, Some(stands)) if found.waiting > 0 => {
            let after = stands.sequence;
            let first =
                dead_letter::first_sequence(connection, name, generation, entity, after).await?;
            first.map(|first| (after, first))
        }
        _ => None,
    };
    found.waits_for = found.waits_for(name, beyond);
    Ok(Answer {
        title: format!("entity {entity} of projection {name}, generation {generation}"),
        says: found.says(projection.gate),
        details: found.details(),
        json: json!({
            "projection": name, "generation": generation, "entity": entity,
            "says": found.says(projection.gate), "gate": gate_json(found.stands.as_ref()),
            "waiting": found.waiting, "waits_for": found.waits_for,
            "letters": found.letters.iter().map(letter_json).collect::<Vec<_>>(),
            "resolved": found.resolved.iter().map(letter_json).collect::<Vec<_>>(),
            "dropped": found.dropped.iter().map(drop_json).collect::<Vec<_>>(),
        }),
    })
}

impl Found<'_> {
    fn says(&self, gate: Gate) -> String {
        let known = self.stands.is_some() || !self.resolved.is_empty() || !self.dropped.is_empty();
        match (self.waiting, gate) {
            (0, Gate::None) => "nothing of it waits".to_owned(),
            (0, _) if !known => {
                "nothing is known of it: no event of it has come to the gate, and none was parked"
                    .to_owned()
            }
            (0, _) => format!(
                "nothing of it waits; the gate {}",
                gate_text(self.stands.as_ref())
            ),
            (1, _) => "1 record of it waits".to_owned(),
            (waiting, _) => format!("{waiting} records of it wait"),
        }
    }

    /// What must come or be done, so that what waits can follow. `beyond`: gate `next` stands at the first
    /// sequence, and the second is the lowest that waits.
    fn waits_for(&self, projection: &str, beyond: Option<(i64, i64)>) -> Option<String> {
        if self.waiting == 0 {
            return None;
        }
        if let Some((stands, first)) = beyond {
            let due = stands.saturating_add(1);
            let missing = match first - due {
                ..=0 => None,
                1 => Some(format!("sequence {due}, which has not come")),
                _ => Some(format!(
                    "sequences {due} to {}, which have not come",
                    first - 1
                )),
            };
            if let Some(missing) = missing {
                return Some(format!(
                    "{missing}; if they never will: `tidegate gate accept-gap {projection} {}`",
                    self.entity
                ));
            }
        }
        let due = beyond.map(|(_, first)| first);
        let first = self
            .letters
            .iter()
            .find(|letter| due.is_none() || letter.sequence == due)?;
        if due.is_some() && matches!(&*first.reason, "gap" | "behind") {
            let letter = letter_text(first);
            return Some(format!(
                "{letter}: its turn has come, and a running service applies it"
            ));
        }
        Some(format!(
            "{}: {}. Repair what is wrong and `tidegate dead-letters redrive {projection} --entity {}`, or discard it",
            letter_text(first),
            first.detail,
            self.entity
        ))
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = vec![("gate", gate_text(self.stands.as_ref()))];
        if let Some(waits_for) = &self.waits_for {
            details.push(("waits for", waits_for.clone()));
        }
        for letter in &self.letters {
            details.push(("waits", letter_text(letter)));
        }
        let more = self.waiting - i64::try_from(self.letters.len()).unwrap_or(i64::MAX);
        if more > 0 {
            details.push(("waits", format!("and {more} more behind them")));
        }
        for letter in &self.resolved {
            let when = letter.resolved_at.map_or_else(String::new, time);
            details.push((
                "was parked",
                format!("{}, {} {when}", letter_text(letter), letter.state),
            ));
        }
        for drop in &self.dropped {
            let place = format!("{}/{}@{}", drop.topic, drop.partition, drop.record_offset);
            details.push((
                "was dropped",
                format!("{place}, {}: {}", time(drop.at), drop_text(drop)),
            ));
        }
        details
    }
}
