//! What happened to one record.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::log::InLog;
use super::{
    Answer, drop_json, drop_text, gate_json, gate_text, letter_json, letter_text, stands, time,
    times,
};
use crate::cli::output::number;
use crate::cli::{CODE_NEEDS_A_PERSON, Failed};
use crate::codec::Decoder;
use crate::engine::explain::{Facts, Log, Totals, Verdict, explain};
use crate::projection::{Gate, Projection};
use crate::registry::Registry as SchemaRegistry;
use crate::store::dead_letter::{self, Kept, OfEntity};
use crate::store::gate::Stands;
use crate::store::history::{self, Batch, Drop};
use crate::store::operation::{self, Discard};
use crate::store::position::{self, OfRecord, Passed};
use crate::store::skipped::{self, With};
use crate::store::{self, inbox};
use crate::types::TopicPartition;

/// What the record itself says, if it could be read.
#[derive(Default)]
pub(super) struct Content {
    entity: Option<String>,
    sequence: Option<i64>,
    event_id: Option<String>,
}

/// All that is stored about it.
struct Found<'a> {
    projection: &'a Projection,
    partition: &'a TopicPartition,
    offset: i64,
    live: Passed,
    /// Generations before the live one that have read it.
    earlier: Vec<Passed>,
    letters: Vec<Kept>,
    skipped: Vec<With>,
    batches: Vec<Batch>,
    dropped: Vec<Drop>,
    content: Content,
    stands: Option<Stands>,
    taken_in: Option<DateTime<Utc>>,
    log: Option<Log>,
    in_log: Option<bool>,
    /// What it waits behind: how many, and the first of them.
    ahead: Option<(i64, Kept)>,
    discard: Option<Discard>,
}

pub(super) async fn answer(
    connection: &mut PgConnection,
    projection: &Projection,
    partition: &TopicPartition,
    offset: i64,
    in_log: InLog,
    content: Content,
) -> Result<Answer, Failed> {
    let mut passed = position::history(connection, projection.name(), partition).await?;
    if passed.is_empty() {
        let error = anyhow::anyhow!(
            "projection `{}` has no position in {partition}; `tidegate status` lists them",
            projection.name()
        );
        return Err(Failed::new(CODE_NEEDS_A_PERSON, error));
    }
    let live = passed.remove(0);
    // Of another topic of that name the record is another one.
    passed.retain(|earlier| earlier.incarnation == live.incarnation);
    let generations = || std::iter::once(&live).chain(&passed);
    let record = OfRecord {
        projection: projection.name(),
        partition,
        offset,
        generations: generations().map(|p| p.generation).collect(),
        incarnations: generations().map(|p| p.incarnation).collect(),
    };
    let mut found = Found {
        projection,
        partition,
        offset,
        letters: dead_letter::of_record(connection, &record).await?,
        skipped: skipped::of_record(connection, &record).await?,
        batches: history::batch_of_record(connection, &record).await?,
        dropped: history::dropped_of_record(connection, &record).await?,
        live,
        earlier: passed,
        content,
        stands: None,
        taken_in: None,
        log: in_log.log,
        in_log: in_log.found,
        ahead: None,
        discard: None,
    };
    found.look_further(connection).await?;
    let verdict = explain(&found.facts());
    Ok(Answer {
        title: format!(
            "{}/{}@{offset} in projection {}, generation {}",
            partition.topic(),
            partition.partition(),
            projection.name(),
            found.live.generation
        ),
        says: found.says(&verdict),
        details: found.details(),
        json: found.as_json(&verdict),
    })
}

/// Reads the record. Asks for its schema, so not while a transaction is open.
pub(super) async fn content(
    projection: &Projection,
    registry: Option<&Arc<SchemaRegistry>>,
    partition: &TopicPartition,
    in_log: &InLog,
) -> Content {
    let Some(record) = &in_log.record else {
        return Content::default();
    };
    let decoder = Decoder::new(projection, registry);
    let shares = [(partition, std::slice::from_ref(record))];
    let Ok(events) = decoder.read(&shares).await else {
        return Content::default();
    };
    Content {
        entity: events.readable_entity(0).map(str::to_owned),
        sequence: events.sequences[0],
        event_id: match projection.event_id {
            Some(_) => events.event_ids.get(0).map(str::to_owned),
            None => None,
        },
    }
}

fn of<T>(rows: &[T], generation: i32, of: impl Fn(&T) -> i32) -> Option<&T> {
    rows.iter().find(|row| of(row) == generation)
}

impl Found<'_> {
    fn letter(&self, generation: i32) -> Option<&Kept> {
        of(&self.letters, generation, |letter| letter.generation)
    }

    fn skip(&self, generation: i32) -> Option<&With> {
        of(&self.skipped, generation, |skipped| skipped.generation)
    }

    fn batch(&self, generation: i32) -> Option<&Batch> {
        of(&self.batches, generation, |batch| batch.generation)
    }

    fn drop(&self, generation: i32) -> Option<&Drop> {
        of(&self.dropped, generation, |drop| drop.generation)
    }

    /// Asks about the entity, and about what a dead letter is tied to.
    async fn look_further(&mut self, connection: &mut PgConnection) -> Result<(), store::Error> {
        let (name, generation) = (self.projection.name(), self.live.generation);
        let letter = self.letter(generation).cloned();
        let drop = self.drop(generation);
        // What was read when it was parked or dropped counts more than what could be read now.
        let entity = letter.as_ref().and_then(|letter| letter.entity.clone());
        let entity = entity.or_else(|| drop?.entity.clone());
        let sequence = letter.as_ref().and_then(|letter| letter.sequence);
        let sequence = sequence.or_else(|| drop?.sequence);
        self.content.entity = entity.or_else(|| self.content.entity.take());
        self.content.sequence = sequence.or(self.content.sequence);
        if let Some(entity) = &self.content.entity {
            self.stands = stands(connection, self.projection, entity).await?;
        }
        if let Some(id) = &self.content.event_id {
            self.taken_in = inbox::read(connection, id).await?;
        }
        let Some(letter) = letter else { return Ok(()) };
        if letter.state == "discarded" {
            self.discard = operation::discard(connection, name, letter.number).await?;
        }
        if let (Some(entity), "waiting") = (&letter.entity, &*letter.state) {
            let is_next = matches!(self.projection.gate, Gate::Next { .. });
            let sequence = letter.sequence.filter(|_| is_next);
            let number = letter.number;
            let ahead =
                dead_letter::ahead(connection, name, generation, entity, number, sequence).await?;
            let waits = OfEntity::Waiting {
                by_sequence: sequence.is_some(),
            };
            let first = dead_letter::of_entity(connection, name, generation, entity, waits, 1);
            let first = first.await?.into_iter().next();
            self.ahead = first.filter(|_| ahead > 0).map(|first| (ahead, first));
        }
        Ok(())
    }

    fn facts(&self) -> Facts {
        let live = &self.live;
        let generation = live.generation;
        Facts {
            offset: self.offset,
            first_offset: live.first_offset,
            next_offset: live.next_offset,
            letter: self.letter(generation).map(|l| l.state == "waiting"),
            skipped: self.skip(generation).is_some(),
            dropped: self.drop(generation).is_some(),
            batch: self
                .batch(generation)
                .map(|batch| (batch.to_offset - batch.from_offset, batch.records)),
            log: self.log,
            in_log: self.in_log,
            totals: Totals {
                applied: live.applied,
                stale: live.stale,
                duplicate: live.duplicate,
                filtered: live.filtered,
            },
        }
    }

    /// The answer in one sentence.
    fn says(&self, verdict: &Verdict) -> String {
        let live = &self.live;
        let (generation, next) = (live.generation, live.next_offset);
        let letter = self.letter(generation);
        let parked = |letter: &Kept| match &*letter.state {
            "waiting" => format!("parked: {}", letter.reason),
            "discarded" => match &self.discard {
                Some(discard) => format!(
                    "discarded, after it was parked, by {}, {}: {}",
                    discard.who,
                    time(discard.at),
                    discard.why
                ),
                None => "discarded, after it was parked".to_owned(),
            },
            state => {
                let when = letter.resolved_at.map_or_else(String::new, time);
                format!("{state}, {when}, after it was parked")
            }
        };
        match verdict {
            Verdict::Parked | Verdict::Resolved => letter.map(parked).unwrap_or_default(),
            Verdict::Skipped => match self.skip(generation) {
                Some(with) => format!(
                    "skipped by {}, {}, with offsets {} to {}",
                    with.who,
                    time(with.at),
                    number(with.from_offset),
                    number(with.to_offset - 1)
                ),
                None => "skipped".to_owned(),
            },
            Verdict::BeyondEnd => "not written yet: it lies beyond the end of the log".to_owned(),
            Verdict::HeldBack => "held back: a producer's transaction is open at it or before it, and nobody may read on until that ends".to_owned(),
            Verdict::Removed => "never applied: retention has removed it before it was reached".to_owned(),
            Verdict::NotReached => {
                let before = number(self.offset - next);
                format!("not reached yet: the position is {}, {before} before it", number(next))
            }
            Verdict::BeforeBeginning => format!(
                "never read: the projection began behind it, at offset {}",
                number(live.first_offset.unwrap_or(next))
            ),
            Verdict::Dropped => {
                let drop = self.drop(generation);
                let when = drop.map_or_else(String::new, |drop| time(drop.at));
                format!("{}. Dropped {when}", drop.map(drop_text).unwrap_or_default())
            }
            Verdict::Applied => match self.batch(generation) {
                Some(batch) => format!("applied, {}, in batch {}", time(batch.at), batch.batch_id),
                None => "applied".to_owned(),
            },
            Verdict::NoRecord if self.offset >= next => "no record: what stands at that offset is the end of a transaction, or was aborted or removed by compaction; it is passed over".to_owned(),
            Verdict::NoRecord => "no record, as far as can be told: kafka has none at that offset now, so it was the end of a transaction, or was aborted, or compaction has removed it since".to_owned(),
            Verdict::Consumed(outcomes) => match &outcomes[..] {
                [] => "passed: there was no record at that offset".to_owned(),
                [one] => format!("{one}: so was every record of this partition that was not parked"),
                outcomes => {
                    let dropped: Vec<&str> =
                        outcomes.iter().filter(|o| **o != "applied").copied().collect();
                    let applied = if outcomes.contains(&"applied") { "applied, or " } else { "" };
                    format!(
                        "consumed: {applied}dropped as {}. Set `history` of the projection to know of later ones",
                        dropped.join(" or ")
                    )
                }
            },
        }
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = Vec::new();
        let mut add = |label, text: String| details.push((label, text));
        if let Some(letter) = self.letter(self.live.generation) {
            let (reason, detail) = (&letter.reason, &letter.detail);
            let kept = match letter.cleared_at {
                None => format!(
                    "`tidegate dead-letters show {}` has its bytes",
                    letter.number
                ),
                Some(at) => format!("its bytes were removed {}", time(at)),
            };
            match letter.cleared_at {
                None => add("reason", format!("{reason}: {detail}")),
                Some(_) => add("reason", reason.clone()),
            }
            add(
                "parked",
                format!(
                    "{}, tried {}, last {}",
                    time(letter.parked_at),
                    times(letter.attempts),
                    time(letter.tried_at)
                ),
            );
            if let Some((count, first)) = &self.ahead {
                add(
                    "waits",
                    format!(
                        "behind {count} of its entity, the first of them {}",
                        letter_text(first)
                    ),
                );
            }
            add("dead letter", format!("{}; {kept}", letter.number));
        }
        if let Some(batch) = self.batch(self.live.generation) {
            let (from, last) = (number(batch.from_offset), number(batch.to_offset - 1));
            let (id, at, records) = (batch.batch_id, time(batch.at), number(batch.records));
            add(
                "batch",
                format!("{id}, {at}: offsets {from} to {last}, records: {records}"),
            );
        }
        if let Some(entity) = &self.content.entity {
            let sequence = self.content.sequence;
            let sequence = sequence.map_or_else(String::new, |s| format!(", sequence {s}"));
            add("entity", format!("{entity}{sequence}"));
            let waits = self.stands.is_some_and(|stands| stands.parked);
            let gate = match self.projection.gate {
                Gate::None => "none: it keeps no sequence".to_owned(),
                _ => gate_text(self.stands.as_ref()),
            };
            let waits = if waits {
                "; records of the entity are parked"
            } else {
                ""
            };
            add("gate", format!("{gate}{waits}"));
        }
        if let Some(id) = &self.content.event_id {
            let taken = match self.taken_in {
                Some(at) => format!("taken in {}", time(at)),
                None => "not taken in".to_owned(),
            };
            add("event id", format!("{id}, {taken}"));
        }
        add("position", self.position_text());
        if let Some(log) = self.log {
            let held_back = match log.end - log.committed {
                0 => String::new(),
                more => format!(
                    "; {} more are held back by an open transaction",
                    number(more)
                ),
            };
            add(
                "log",
                format!(
                    "from {} up to {}{held_back}",
                    number(log.low),
                    number(log.committed)
                ),
            );
        }
        for earlier in self.earlier.iter().filter(|e| self.offset < e.next_offset) {
            add(
                "earlier",
                format!(
                    "generation {}: {}",
                    earlier.generation,
                    self.earlier_text(earlier).1
                ),
            );
        }
        details
    }

    fn position_text(&self) -> String {
        let live = &self.live;
        let state = match &*live.condition {
            _ if live.desired_state == "paused" => "the projection is paused".to_owned(),
            "running" | "retrying" if !live.connected => "nobody works on it".to_owned(),
            "idle" => "nobody works on it".to_owned(),
            condition if live.cause.is_empty() => condition.to_owned(),
            condition => format!("{condition} since {}: {}", time(live.since), live.cause),
        };
        format!(
            "{} of {}; {state}",
            number(live.next_offset),
            self.partition
        )
    }

    /// What an earlier generation had made of it: a word, and a sentence.
    fn earlier_text(&self, earlier: &Passed) -> (String, String) {
        let generation = earlier.generation;
        let same = |text: String| (text.clone(), text);
        if let Some(letter) = self.letter(generation) {
            return match &*letter.state {
                "waiting" => ("parked".to_owned(), format!("parked: {}", letter.reason)),
                state => (state.to_owned(), format!("{state}, after it was parked")),
            };
        }
        if let Some(with) = self.skip(generation) {
            return (
                "skipped".to_owned(),
                format!("skipped by {}, {}", with.who, time(with.at)),
            );
        }
        if earlier
            .first_offset
            .is_some_and(|first| self.offset < first)
        {
            return same("never read".to_owned());
        }
        if let Some(drop) = self.drop(generation) {
            return (drop.outcome.clone(), drop_text(drop));
        }
        match self.batch(generation) {
            Some(batch) => ("applied".to_owned(), format!("applied, {}", time(batch.at))),
            None => same("consumed".to_owned()),
        }
    }

    fn as_json(&self, verdict: &Verdict) -> Value {
        let live = &self.live;
        let generation = live.generation;
        let letter = self.letter(generation);
        let name = match verdict {
            Verdict::Parked => "parked",
            Verdict::Resolved => letter.map_or("parked", |letter| &*letter.state),
            Verdict::Skipped => "skipped",
            Verdict::BeyondEnd => "beyond_end",
            Verdict::HeldBack => "held_back",
            Verdict::Removed => "removed",
            Verdict::NotReached => "not_reached",
            Verdict::BeforeBeginning => "before_beginning",
            Verdict::Dropped => self
                .drop(generation)
                .map_or("dropped", |drop| &*drop.outcome),
            Verdict::Applied => "applied",
            Verdict::NoRecord => "no_record",
            Verdict::Consumed(outcomes) => match &outcomes[..] {
                [one] => one,
                _ => "consumed",
            },
        };
        let may_be = match verdict {
            Verdict::Consumed(outcomes) => json!(outcomes),
            _ => Value::Null,
        };
        let earlier = self.earlier.iter().filter(|e| self.offset < e.next_offset);
        let earlier = earlier
            .map(|e| json!({ "generation": e.generation, "verdict": self.earlier_text(e).0 }));
        json!({
            "projection": self.projection.name(), "generation": generation,
            "topic": self.partition.topic(), "partition": self.partition.partition(), "offset": self.offset,
            "verdict": name, "may_be": may_be, "says": self.says(verdict),
            "entity": self.content.entity, "sequence": self.content.sequence,
            "gate": gate_json(self.stands.as_ref()),
            "event_id": self.content.event_id, "taken_in": self.taken_in.map(|at| at.to_rfc3339()),
            "dead_letter": letter.map(letter_json),
            "waits_behind": self.ahead.as_ref().map(|(count, first)| json!({ "count": count, "first": letter_json(first) })),
            "discarded": self.discard.as_ref().map(|d| json!({ "who": d.who, "at": d.at.to_rfc3339(), "why": d.why })),
            "dropped": self.drop(generation).map(drop_json),
            "batch": self.batch(generation).map(|b| json!({
                "id": b.batch_id.to_string(), "at": b.at.to_rfc3339(), "from_offset": b.from_offset,
                "to_offset": b.to_offset, "records": b.records,
            })),
            "skipped": self.skip(generation).map(|s| json!({
                "who": s.who, "at": s.at.to_rfc3339(), "from_offset": s.from_offset, "to_offset": s.to_offset,
            })),
            "position": {
                "next_offset": live.next_offset, "first_offset": live.first_offset, "owner": live.owner,
                "desired_state": live.desired_state, "condition": live.condition, "cause": live.cause,
                "since": live.since.to_rfc3339(),
            },
            "log": self.log.map(|log| json!({ "low": log.low, "committed": log.committed, "end": log.end })),
            "earlier": earlier.collect::<Vec<_>>(),
        })
    }
}
