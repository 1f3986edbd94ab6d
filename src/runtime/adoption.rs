//! Adoption: a letter whose entity could not be read when it was parked, and can be now, takes its place in
//! that entity's queue.
//!
//! Its gate is locked and marked first, as where a record is parked, so nothing of the entity passes it
//! meanwhile; then it is redriven like any other (I4).

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::admission::initial;
use super::apply::Generation;
use super::letters::AROUND_COMMIT;
use super::redrive::{RedriveError, Redriver};
use super::reposition::end;
use crate::engine::gate::Standing;
use crate::engine::parking::{Reason, Rejection};
use crate::projection::Events;
use crate::store::dead_letter::{self, Adopted, Waits};
use crate::store::{self, transaction};

impl Redriver<'_> {
    /// Returns the entities, and the letters that still have none.
    pub(crate) async fn adopt(
        &self,
        connection: &mut PgConnection,
        numbers: &[i64],
    ) -> Result<(BTreeSet<String>, Vec<i64>), RedriveError> {
        let (mut entities, mut adopted) = (BTreeSet::new(), BTreeSet::new());
        for numbers in numbers.chunks(self.letters_max) {
            let limit = self.timeouts.transaction();
            let chunk = self.adopt_chunk(connection, numbers);
            for (letter, entity) in store::within("adopting dead letters", limit, chunk).await? {
                adopted.insert(letter);
                entities.insert(entity);
            }
        }
        let alone = numbers.iter().copied().filter(|n| !adopted.contains(n));
        Ok((entities, alone.collect()))
    }

    async fn adopt_chunk(
        &self,
        connection: &mut PgConnection,
        numbers: &[i64],
    ) -> Result<Vec<(i64, String)>, RedriveError> {
        loop {
            let generation = self.generation(connection).await?;
            let name = &self.projection.name;
            let path = transaction::search_path(&generation.schema_name, &[]);
            let application = format!("tidegate {} adopt {name}", self.owner);
            transaction::begin(connection, &path, &application, &self.timeouts).await?;
            let done = self.adopt_in(connection, &generation, numbers).await;
            match end(connection, done, AROUND_COMMIT).await {
                Err(RedriveError::Schemas(schemas)) => self.learn(&schemas).await?,
                done => return done,
            }
        }
    }

    async fn adopt_in(
        &self,
        connection: &mut PgConnection,
        generation: &Generation,
        numbers: &[i64],
    ) -> Result<Vec<(i64, String)>, RedriveError> {
        let (name, number) = (&self.projection.name, generation.number);
        let alone = self.projection.gate_in.is_some();
        transaction::open_apply(connection, &generation.schema_name, "auto", alone).await?;
        self.check(connection, generation).await?;
        let letters = dead_letter::by_number(connection, name, number, numbers).await?;
        let events = self.decode(&letters)?;
        let mut adopted = Vec::new();
        for (event, letter) in (0..).zip(&letters) {
            // One that cannot be applied yet holds up nobody, as before.
            let stays = events.filtered[event as usize] || events.rejected.contains_key(&event);
            let entity = events.readable_entity(event).filter(|e| !e.is_empty());
            let Some(entity) = entity.filter(|_| !stays) else {
                continue;
            };
            let detail = format!("its entity, `{entity}`, could not be read before");
            adopted.push(Adopted {
                number: letter.number,
                entity,
                sequence: events.sequences[event as usize],
                rejection: Rejection::new(Reason::Behind, detail),
            });
        }
        let entities: BTreeSet<&str> = adopted.iter().map(|letter| letter.entity).collect();
        if entities.is_empty() {
            return Ok(Vec::new());
        }
        let sorted: Vec<&str> = entities.iter().copied().collect();
        // Their sequences say nothing: what comes first is in the queue.
        let initial = initial(self.projection.gate, []);
        let mut initial = vec![initial; sorted.len()];
        if let Some(gate_in) = &self.projection.gate_in {
            let rows = gate_in.read(connection, &sorted).await;
            let rows = rows.map_err(|error| RedriveError::Handler(error.to_string()))?;
            let mut walk = rows.walk();
            for (entity, initial) in sorted.iter().zip(&mut initial) {
                *initial = walk.sequence(entity).unwrap_or(*initial);
            }
        }
        let stands = store::gate::lock(connection, &sorted, &initial).await?;
        let marked = |standing| Standing {
            parked: true,
            ..standing
        };
        let marks: Vec<(&str, Standing)> = sorted
            .iter()
            .copied()
            .zip(stands.into_iter().map(marked))
            .collect();
        store::gate::set(connection, &marks).await?; // I4
        if dead_letter::adopt(connection, &adopted).await? != adopted.len() as u64 {
            return Err(RedriveError::Refused);
        }
        let done = adopted.iter().map(|a| (a.number, a.entity.to_owned()));
        Ok(done.collect())
    }
}

/// A letter passes the gate of the entity it waits for, and no other's: only that one is locked (I4).
pub(super) fn refuse_strangers(letters: &[Waits], events: &mut Events<'_>) {
    for (event, letter) in (0..).zip(letters) {
        let read = events.readable_entity(event).filter(|e| !e.is_empty());
        if events.filtered[event as usize]
            || events.rejected.contains_key(&event)
            || read == letter.entity.as_deref()
        {
            continue;
        }
        let shown = |entity: Option<&str>| match entity {
            Some(entity) => format!("entity `{entity}`"),
            None => "no entity".to_owned(),
        };
        let detail = format!(
            "the record was parked for {} and is read as of {} now; redrive it once more, or reset the projection if what reads it has changed",
            shown(letter.entity.as_deref()),
            shown(read)
        );
        let rejection = Rejection::new(Reason::Undecodable, detail);
        events.rejected.insert(event, rejection);
    }
}
