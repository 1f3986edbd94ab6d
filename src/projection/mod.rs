//! What users write against: the handler, its context, the batch, and the definition around them.
//!
//! A [`Projection`] is a named read model: its topics, its gate, its handler, its tables. Handlers
//! get the open transaction and cannot commit it. Nothing here runs anything; `runtime` does.

mod bulk;
mod column;
mod context;
mod definition;
mod entity_type;
mod events;
mod exact;
mod fit;
mod fold;
mod format;
mod gate_in;
mod handler;
mod outgoing;
mod problems;
mod registry;
mod source;

pub use column::{Column, ColumnType, ColumnValue, FromColumn, TimeUnit};
pub use context::{Context, Savepoint};
pub use definition::{First, Gate, OnFailure, ParkingLimits, Projection, Start, Tombstones};
pub use entity_type::EntityType;
pub use events::{Batch, Event};
pub use fold::{Columns, Fold, Messages, State};
pub use format::{Avro, AvroSchema, Format, Types, UnknownType};
pub use handler::{BatchHandler, EventHandler, HandlerError};
pub use registry::{Registry, RegistryError};
pub use source::Source;

pub use crate::types::Message;

pub(crate) use bulk::Bulk;
pub(crate) use column::{ColumnData, TextColumn};
pub(crate) use context::{Emitted, HEADER_FRAMING, MESSAGE_SIZE_MAX};
pub(crate) use definition::only_entity;
pub(crate) use events::{Documents, Events, Outcome, Ref, Share};
pub(crate) use format::{Framing, ValueLimits};
pub(crate) use gate_in::{GateIn, GateRows, PREVIOUS};
pub(crate) use handler::Handler;
pub(crate) use outgoing::{Frame, Outgoing};
pub(crate) use problems::{TOPIC_CURE, column_problem, is_identifier, is_near, is_topic};
