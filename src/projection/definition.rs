//! What a projection is, apart from its code.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::bulk::Bulk;
use super::column::Column;
use super::entity_type::EntityType;
use super::fold::{Fold, Folded};
use super::format::{Avro, Format, Framing, Types, ValueLimits};
use super::gate_in::GateIn;
use super::handler::{BatchHandler, Erased, EventHandler, Handler, OneByOne};
use super::outgoing::Outgoing;
use super::source::Source;
use crate::engine::Class;
use crate::types::TopicPartition;

/// Which sequence a gate [`Next`](Gate::Next) expects of an entity it has not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Exactly this one.
    At(i64),
    /// Whatever comes: history was cut.
    Any,
}

/// The per-entity check that admits an event by its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Admits a sequence greater than the last one: events that carry full state.
    Newest,
    /// Admits exactly the next sequence: deltas, such as balances, counters, ledgers.
    Next {
        /// What an unknown entity begins with.
        first: First,
    },
    /// Admits everything: positions alone make it exactly once with regard to redelivery.
    None,
}

impl Gate {
    /// Gate `next` for entities whose numbers begin at 1.
    pub const NEXT: Self = Self::Next {
        first: First::At(1),
    };
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("newest"),
            Self::Next {
                first: First::At(first),
            } => write!(f, "next from {first}"),
            Self::Next { first: First::Any } => f.write_str("next from any"),
            Self::None => f.write_str("none"),
        }
    }
}

/// Where a projection's partitions begin at its very first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record kept.
    #[default]
    Earliest,
    /// After the newest record there is.
    Latest,
}

/// What a record without a value means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tombstones {
    /// An error of the record: nobody said what it means.
    #[default]
    Refuse,
    /// Nothing: it is counted as filtered.
    Filter,
    /// An event like any other, without anything from a value: in SQL `_tombstone` tells it.
    Event,
}

/// What becomes of a record that cannot be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is parked: kept as a dead letter, and with it what follows of its entity. Everything else goes on.
    #[default]
    Park,
    /// Its partition halts.
    Halt,
}

/// How many records may be parked before the partition halts instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkingLimits {
    /// Waiting records of one entity: 1,000.
    pub entity_max: u32,
    /// Waiting records of the projection: 10,000.
    pub total_max: u32,
    /// Records in a row that cannot be applied: 50. More look like a bad deployment.
    pub consecutive_max: u32,
    /// Records that cannot be applied among the last thousand, in percent: 20.
    pub share_max: u32,
}

impl Default for ParkingLimits {
    fn default() -> Self {
        Self {
            entity_max: 1_000,
            total_max: 10_000,
            consecutive_max: 50,
            share_max: 20,
        }
    }
}

/// What a definition says last of a build of one entity, before its name.
const ONLY_ENTITY: &str = "; only entity ";

/// The only entity that something is built of, as its definition says.
pub(crate) fn only_entity(definition: &str) -> Option<&str> {
    let (_, entity) = definition.split_once(ONLY_ENTITY)?;
    Some(entity)
}

/// A named read model: its topics, its gate, its handler, its tables.
#[derive(Clone)]
pub struct Projection {
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) topics: Vec<String>,
    pub(crate) gate: Gate,
    /// The table whose rows carry the gate; none where it has rows of its own.
    pub(crate) gate_in: Option<GateIn>,
    pub(crate) entity: Option<Source>,
    pub(crate) entity_type: EntityType,
    pub(crate) sequence: Option<Source>,
    pub(crate) event_id: Option<Source>,
    pub(crate) columns: Vec<Column>,
    pub(crate) format: Format,
    pub(crate) types: Option<Types>,
    /// How messages are written that are not JSON, to be settled before anything is emitted.
    pub(crate) outgoing: Vec<Arc<Outgoing>>,
    pub(crate) limits: ValueLimits,
    /// None for what is usual in the format.
    pub(crate) tombstones: Option<Tombstones>,
    pub(crate) on_failure: OnFailure,
    pub(crate) parking: ParkingLimits,
    pub(crate) attempts_max: u32,
    /// Where what is parked is sent to.
    pub(crate) dead_letter_topic: Option<String>,
    /// How long it is kept what became of each record; none for not at all.
    pub(crate) history: Option<Duration>,
    /// What SQLSTATEs of the handler's statements mean here, other than usual.
    pub(crate) sqlstates: BTreeMap<String, Class>,
    pub(crate) start: Start,
    pub(crate) begins_anywhere: bool,
    /// Tables and their columns: see [`Projection::entity_rows`].
    pub(crate) entity_rows: Vec<(String, String)>,
    /// The only entity whose events are wanted: a build of it alone.
    pub(crate) only: Option<String>,
    /// The only partitions that such a build reads, in order; all if there are none.
    pub(crate) only_in: Vec<TopicPartition>,
    pub(crate) setup: String,
    pub(crate) seed: String,
    pub(crate) search_path: Vec<String>,
    /// Who does what the handler does.
    pub(crate) role: Option<String>,
    pub(crate) writes_elsewhere: bool,
    pub(crate) handler: Arc<dyn Handler>,
}

impl fmt::Debug for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Projection")
            .field("name", &self.name)
            .field("definition", &self.definition())
            .finish_non_exhaustive()
    }
}

impl Projection {
    /// A projection whose handler gets the admitted events of a batch at once.
    ///
    /// `name` becomes the schema of its tables and part of its consumer group. Raise `version` when
    /// a change of the handler needs the tables to be built anew: workers of another version then
    /// refuse to go on from these tables.
    pub fn batch(
        name: &str,
        version: u32,
        topics: &[&str],
        gate: Gate,
        handler: impl BatchHandler,
    ) -> Self {
        Self::with_handler(name, version, topics, gate, Arc::new(Erased(handler)))
    }

    /// A projection whose handler gets the admitted events one at a time; the rest is as for [`batch`](Self::batch).
    pub fn event(
        name: &str,
        version: u32,
        topics: &[&str],
        gate: Gate,
        handler: impl EventHandler,
    ) -> Self {
        Self::with_handler(name, version, topics, gate, Arc::new(OneByOne(handler)))
    }

    /// A projection that keeps a state for each entity and folds the admitted events into it; the rest is as for
    /// [`batch`](Self::batch). It needs [`entity`](Self::entity), whatever its gate.
    pub fn fold(name: &str, version: u32, topics: &[&str], gate: Gate, fold: impl Fold) -> Self {
        Self::with_handler(name, version, topics, gate, Arc::new(Folded::new(fold)))
    }

    /// The same with the gate in the state's row, which saves Postgres about a fifth: the table has a further column,
    /// `_sequence bigint NOT NULL`, which Tidegate reads and writes.
    ///
    /// A row that carries the gate must stay: a fold that returns no state halts its partition.
    pub fn fold_with_gate(
        name: &str,
        version: u32,
        topics: &[&str],
        gate: Gate,
        fold: impl Fold,
    ) -> Self {
        let folded = Folded::new(fold);
        let gate_in = Some(folded.gate_in());
        let projection = Self::with_handler(name, version, topics, gate, Arc::new(folded));
        Self {
            gate_in,
            ..projection
        }
    }

    pub(crate) fn with_handler(
        name: &str,
        version: u32,
        topics: &[&str],
        gate: Gate,
        handler: Arc<dyn Handler>,
    ) -> Self {
        let entity_rows = handler.entity_rows().into_iter().collect();
        let entity_type = handler.entity_type();
        Self {
            name: name.to_owned(),
            version,
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            gate,
            gate_in: None,
            entity: None,
            entity_type,
            sequence: None,
            event_id: None,
            columns: Vec::new(),
            format: Format::default(),
            types: None,
            outgoing: Vec::new(),
            limits: ValueLimits::default(),
            tombstones: None,
            on_failure: OnFailure::default(),
            parking: ParkingLimits::default(),
            attempts_max: 0,
            dead_letter_topic: None,
            history: None,
            sqlstates: BTreeMap::new(),
            start: Start::default(),
            begins_anywhere: false,
            entity_rows,
            only: None,
            only_in: Vec::new(),
            setup: String::new(),
            seed: String::new(),
            search_path: Vec::new(),
            role: None,
            writes_elsewhere: false,
            handler,
        }
    }

    /// Where the entity stands. Every gate but [`Gate::None`] needs it.
    #[must_use]
    pub fn entity(mut self, source: Source) -> Self {
        self.entity = Some(source);
        self
    }

    /// Where the entity's sequence stands. Every gate but [`Gate::None`] needs it.
    #[must_use]
    pub fn sequence(mut self, source: Source) -> Self {
        self.sequence = Some(source);
        self
    }

    /// A value that is taken from each record, for [`Event::get`](super::Event::get). A record without it, or with another
    /// type, cannot be applied. What it stands for belongs to the `version`, as what the handler does.
    #[must_use]
    pub fn column(mut self, column: Column) -> Self {
        self.columns.push(column);
        self
    }

    /// What a record's value is: JSON, if nothing is said. Sources, columns, [`Event::json`](super::Event::json) and
    /// tombstones mean in each format what they mean in the configuration file.
    ///
    /// ```
    /// # use tidegate::projection::{Avro, Column, ColumnType, Format, Projection, Source, Types};
    /// # const ENTRY: &str = r#"{"type": "record", "name": "Entry", "fields": []}"#;
    /// # fn in_avro(projection: Projection) -> Projection {
    /// let amount = Source::Pointer("/amount".to_owned());
    /// projection
    ///     .format(Format::Avro(Avro::confluent(ENTRY)))
    ///     .column(Column::new("amount", ColumnType::Bigint, amount))
    /// # }
    /// # fn cloud_events(projection: Projection) -> Projection {
    /// projection
    ///     .format(Format::CloudEvents)
    ///     .event_id(Source::Attribute("id".to_owned()))
    ///     .types(Types::new(Source::Attribute("type".to_owned()), &["OrderPlaced", "OrderShipped"]))
    /// # }
    /// ```
    ///
    /// With [`Format::Debezium`], unless something else is said, the sequence is the position in the source's log, the
    /// types are [those of changes](Types::of_changes), and tombstones are filtered.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self.change_defaults();
        self
    }

    /// What change events are taken for, unless something else is said.
    pub(crate) fn change_defaults(&mut self) {
        if !matches!(self.format, Format::Debezium(_)) {
            return;
        }
        if self.gate != Gate::None {
            let lsn = || Source::Envelope("/source/lsn".to_owned());
            self.sequence.get_or_insert_with(lsn);
        }
        self.types.get_or_insert_with(Types::of_changes);
        // One comes after each deletion, for the log's compaction, and says nothing new.
        self.tombstones.get_or_insert(Tombstones::Filter);
    }

    /// The types of event that are told apart, for [`Event::event_type`](super::Event::event_type); and what becomes of others.
    #[must_use]
    pub fn types(mut self, types: Types) -> Self {
        self.types = Some(types);
        self
    }

    /// Where the event's id stands: turns on the inbox, which drops an id that was applied already.
    #[must_use]
    pub fn event_id(mut self, source: Source) -> Self {
        self.event_id = Some(source);
        self
    }

    /// What a record without a value means.
    #[must_use]
    pub fn tombstones(mut self, tombstones: Tombstones) -> Self {
        self.tombstones = Some(tombstones);
        self
    }

    /// What becomes of a record that cannot be applied.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// How many records may be parked before the partition halts instead.
    #[must_use]
    pub fn parking(mut self, limits: ParkingLimits) -> Self {
        self.parking = limits;
        self
    }

    /// How often a batch is tried whose handler returns [`HandlerError::transient`](super::HandlerError::transient)
    /// before its partition halts: 0, as by default, for as often as it takes. Errors of the database that
    /// may pass later are not counted.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts;
        self
    }

    /// Sends what is parked to a topic too: each record once, when it is parked for the first time, with its bytes and
    /// headers that say why. The dead letter in the database is the one that counts.
    #[must_use]
    pub fn dead_letter_topic(mut self, topic: &str) -> Self {
        self.dead_letter_topic = Some(topic.to_owned());
        self
    }

    /// Keeps for this long what became of each record: for `tidegate explain`. It costs a row for each partition of
    /// a batch, and one for each dropped record.
    #[must_use]
    pub fn history(mut self, keep: Duration) -> Self {
        self.history = Some(keep);
        self
    }

    /// Where the partitions begin at the very first start.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Says that the tables are right whichever record of a partition they begin with: a reset may then go to another
    /// point than the beginning. So it may with [`Start::Latest`], which says the same.
    #[must_use]
    pub fn begins_anywhere(mut self) -> Self {
        self.begins_anywhere = true;
        self
    }

    /// SQL that creates the projection's tables, run once with its schema first in `search_path`.
    #[must_use]
    pub fn setup(mut self, sql: &str) -> Self {
        self.setup = sql.to_owned();
        self
    }

    /// SQL that fills rows the handler expects, run after `setup` and after every reset.
    #[must_use]
    pub fn seed(mut self, sql: &str) -> Self {
        self.seed = sql.to_owned();
        self
    }

    /// Schemas that statements may see besides the projection's own.
    #[must_use]
    pub fn search_path(mut self, schemas: &[&str]) -> Self {
        self.search_path = schemas.iter().map(|schema| (*schema).to_owned()).collect();
        self
    }

    /// The Postgres role that does what the handler does, instead of the one that the service has. It gets the rights on the
    /// projection's tables when those are made, and none on what the service keeps. The service's role must be a member of it.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        self.role = Some(role.to_owned());
        self
    }

    /// Says that the handler writes to tables outside the projection's schema. A reset cannot empty
    /// those, so there is none for such a projection.
    #[must_use]
    pub fn writes_elsewhere(mut self) -> Self {
        self.writes_elsewhere = true;
        self
    }

    /// Names the tables whose rows belong to one entity each, and come of its events alone, with the column that has
    /// the entity: then one entity can be built anew. They are emptied of it in this order and filled in the opposite
    /// one: what refers to another table comes first. A [`Fold`] says it by itself.
    #[must_use]
    pub fn entity_rows(mut self, rows: &[(&str, &str)]) -> Self {
        let owned = |(table, column): &(&str, &str)| ((*table).to_owned(), (*column).to_owned());
        self.entity_rows = rows.iter().map(owned).collect();
        self
    }

    /// The projection's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the tables are right without what is older than the record that they begin with.
    pub(crate) fn may_begin_anywhere(&self) -> bool {
        self.begins_anywhere || self.start == Start::Latest
    }

    /// What its format needs of the configuration and does not find there.
    pub(crate) fn lacks(&self, has_registry: bool) -> Option<String> {
        let framing = self.format.avro().map(|avro| &avro.framing);
        let is_lacking = matches!(framing, Some(Framing::Confluent)) && !has_registry;
        is_lacking.then(|| {
            format!(
                "projection `{}`: the framing `confluent` needs [schema_registry]",
                self.name
            )
        })
    }

    /// The source that its messages name.
    pub(crate) fn source(&self) -> String {
        format!("/tidegate/{}", self.name)
    }

    /// Whether anything of a record's headers is read.
    pub(crate) fn reads_headers(&self) -> bool {
        let header = |source: &Source| matches!(source, Source::Header(_));
        let own = [&self.entity, &self.sequence, &self.event_id];
        // How a CloudEvent comes is in a header.
        matches!(self.format, Format::CloudEvents)
            || self
                .types
                .as_ref()
                .is_some_and(|types| header(&types.source))
            || self.handler.sees_records()
            // A message goes on with its record's trace.
            || self.handler.emits()
            || own.into_iter().flatten().any(header)
            || self.columns.iter().any(|column| header(&column.source))
    }

    /// An entity that somebody names, as it is spelled here.
    ///
    /// # Errors
    /// That it can be none.
    pub(crate) fn spelled(&self, entity: &str) -> Result<String, String> {
        let spelled = self.entity_type.spelled(entity.into());
        let spelled = spelled.map_err(|why| format!("`{entity}` can be no entity: {why}"))?;
        Ok(spelled.into_owned())
    }

    /// What the tables' content depends on, as text that says what differs when it differs.
    ///
    /// Stored with the generation and compared at every claim. The text of statements is not part of
    /// it, so that a repaired statement can go on; `version` is, for changes that cannot.
    pub(crate) fn definition(&self) -> String {
        let source = |source: &Option<Source>| {
            source
                .as_ref()
                .map_or_else(|| "none".to_owned(), ToString::to_string)
        };
        let mut topics = self.topics.clone();
        topics.sort();
        let types = match &self.types {
            Some(types) => format!("; type {}", types.source),
            None => String::new(),
        };
        let gate_in = match &self.gate_in {
            Some(gate_in) => format!(" in {gate_in}"),
            None => String::new(),
        };
        let entity_type = match self.entity_type {
            EntityType::Text => String::new(),
            other => format!(" as {other}"),
        };
        let chosen: Vec<String> = self.only_in.iter().map(ToString::to_string).collect();
        let only_in = match chosen.is_empty() {
            true => String::new(),
            false => format!("; only in {}", chosen.join(" ")),
        };
        let only = match &self.only {
            Some(entity) => format!("{only_in}{ONLY_ENTITY}{entity}"),
            None => String::new(),
        };
        format!(
            "version {}; topics {}; gate {}{gate_in}; entity {}{entity_type}; sequence {}; event_id {}{types}{only}",
            self.version,
            topics.join(" "),
            self.gate,
            source(&self.entity),
            source(&self.sequence),
            source(&self.event_id),
        )
    }

    /// What can take in a build's events before it writes, if nothing is to be remembered of each of them and nobody else
    /// than the service writes: a role may see fewer rows than there are, and COPY does without such policies.
    pub(crate) fn bulk(&self) -> Option<Box<dyn Bulk>> {
        match (&self.event_id, self.history, &self.gate_in, &self.role) {
            (None, None, None, None) => self.handler.bulk(self.gate),
            _ => None,
        }
    }

    /// What else decides what is in the tables: formats and columns, the texts of SQL projections.
    ///
    /// Stored with the generation too, to say at a start that they have changed. They do not keep a claim
    /// from going on: a statement that is repaired must be able to.
    pub(crate) fn statements(&self) -> String {
        let format = match &self.format {
            Format::Json => "json",
            Format::Avro(_) => "avro",
            Format::CloudEvents => "cloudevents",
            Format::Debezium(_) => "debezium",
        };
        let schema = self.format.avro().map(|avro| &avro.schema);
        let framed = match self.format.avro() {
            // The usual case, as it was written before there was another one.
            Some(Avro {
                framing: Framing::Confluent,
                key: None,
                ..
            })
            | None => String::new(),
            Some(avro) => format!(
                " {:?} {:?}",
                avro.framing,
                avro.key.as_ref().map(|key| &key.schema)
            ),
        };
        let (columns, types) = (&self.columns, &self.types);
        let (tombstones, seed) = (self.tombstones.unwrap_or_default(), &self.seed);
        let handler = self.handler.statements();
        format!(
            "format {format} {schema:?}{framed}; columns {columns:?}; types {types:?}; tombstones {tombstones:?}; seed {seed:?}; {handler}"
        )
    }
}
