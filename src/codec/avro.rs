//! Values in Avro: which schema wrote them, and how that is read by the projection's.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use super::UnknownSchemas;
use crate::avro::{Datum, Limits, Plan, Schema, Wanted, tokens};
use crate::projection::{Avro, Framing, ValueLimits};
use crate::registry::{Known, Registry};
use crate::types::{Record, TopicPartition};

/// How a value that was written with some schema is read, or why it cannot be.
type Planned = Arc<Result<Plan, String>>;

/// The plans that the records of a batch need, by what names the schema.
#[derive(Debug, Default)]
pub(super) struct Plans(HashMap<u64, Planned>);

/// Decodes values by one schema, whatever they were written with.
#[derive(Debug)]
pub(super) struct AvroDecoder {
    schema: Arc<Schema>,
    framing: Frame,
    wanted: Vec<Wanted>,
    limits: Limits,
    /// Of those that name their schemas by number.
    registry: Option<Arc<Registry>>,
    /// Made so far, and of how many doubts of the registry that was aware.
    plans: RwLock<Made>,
}

#[derive(Debug, Default)]
struct Made {
    plans: HashMap<u64, Planned>,
    doubts: u64,
}

/// How a value names its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Confluent,
    SingleObject,
    Raw,
}

/// What begins a value of single-object encoding.
const SINGLE_OBJECT: [u8; 2] = [0xc3, 0x01];

impl AvroDecoder {
    pub(super) fn new(
        format: &Avro,
        pointers: &[super::json::Wanted],
        limits: ValueLimits,
        registry: Option<&Arc<Registry>>,
    ) -> Self {
        let wanted = pointers.iter().enumerate().map(|(slot, pointer)| Wanted {
            path: tokens(&pointer.pointer).collect(),
            slot,
        });
        let mut decoder = Self {
            schema: Arc::clone(&format.schema),
            framing: Frame::Raw,
            wanted: wanted.collect(),
            limits: Limits {
                nesting_max: limits.nesting_max,
                items_max: limits.items_max,
                text_bytes_max: limits.bytes_max,
            },
            registry: None,
            plans: RwLock::default(),
        };
        match &format.framing {
            Framing::Confluent => {
                decoder.framing = Frame::Confluent;
                decoder.registry = registry.cloned();
            }
            Framing::SingleObject(writers) => {
                decoder.framing = Frame::SingleObject;
                for writer in writers.iter().chain([&format.schema]) {
                    decoder.plan(u64::from_le_bytes(writer.fingerprint()), writer, 0);
                }
            }
            Framing::Raw(writer) => {
                decoder.plan(0, writer, 0);
            }
        }
        decoder
    }

    pub(super) fn slots(&self) -> usize {
        self.wanted.len()
    }

    /// Makes a plan, and keeps it unless there are more doubts by now than when the writer's schema was asked for.
    pub(super) fn plan(&self, key: u64, writer: &Schema, doubts: u64) -> Planned {
        let plan = Plan::new(writer, &self.schema, &self.wanted);
        let plan = plan.map_err(|why| match self.framing {
            Frame::Confluent => format!("schema {key}: {why}"),
            _ => why,
        });
        let plan = Arc::new(plan);
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        // I10: another writer may have forgotten what was in doubt meanwhile.
        if plans.doubts == doubts {
            plans.plans.insert(key, Arc::clone(&plan));
        }
        plan
    }

    fn made(&self, key: u64) -> Option<Planned> {
        let plans = self.plans.read().unwrap_or_else(PoisonError::into_inner);
        plans.plans.get(&key).cloned()
    }

    /// Gathers the plans that the records' values, or keys, need.
    pub(super) fn plans(
        &self,
        shares: &[(&TopicPartition, &[Record])],
        part: fn(&Record) -> Option<&[u8]>,
    ) -> Result<Plans, UnknownSchemas> {
        self.forget_doubtful();
        let mut plans = HashMap::new();
        let mut unknown = BTreeMap::new();
        let mut last = None;
        let records = shares.iter().flat_map(|(_, records)| records.iter());
        for (event, record) in (0..).zip(records) {
            // What has no right frame is told when it is decoded.
            let Some(Ok((key, _))) = part(record).map(|bytes| self.frame(bytes)) else {
                continue;
            };
            if last == Some(key) || plans.contains_key(&key) {
                continue;
            }
            last = Some(key);
            let planned = match self.made(key) {
                Some(planned) => planned,
                None => match self.look_up(key) {
                    Ok(planned) => planned,
                    Err(id) => {
                        unknown.entry(id).or_insert(event);
                        continue;
                    }
                },
            };
            plans.insert(key, planned);
        }
        match unknown.is_empty() {
            true => Ok(Plans(plans)),
            false => Err(UnknownSchemas(unknown)),
        }
    }

    fn doubts(&self) -> u64 {
        let registry = self.registry.as_ref();
        registry.map_or(0, |registry| registry.doubts())
    }

    /// What was made of a schema that its number does not stand for any more is not used again (I10).
    fn forget_doubtful(&self) {
        let doubts = self.doubts();
        let made = self.plans.read().unwrap_or_else(PoisonError::into_inner);
        if made.doubts == doubts {
            return;
        }
        drop(made);
        let mut made = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        *made = Made {
            plans: HashMap::new(),
            doubts,
        };
    }

    fn look_up(&self, key: u64) -> Result<Planned, u32> {
        let never = |why: &str| Ok(Arc::new(Err(why.to_owned())));
        let doubts = self.doubts();
        match (self.framing, u32::try_from(key), &self.registry) {
            (Frame::Confluent, Ok(id), Some(registry)) => match registry.known(id) {
                Some(Known::Schema(writer)) => Ok(self.plan(key, &writer, doubts)),
                // Not kept: it may become known.
                Some(Known::Not(why)) => never(&why),
                None => Err(id),
            },
            (Frame::Confluent, ..) => never("there is no [schema_registry] to ask"),
            _ => {
                never("written with a schema whose fingerprint is none of those in `written_with`")
            }
        }
    }

    /// What names the schema, and the datum behind it.
    fn frame<'p>(&self, value: &'p [u8]) -> Result<(u64, &'p [u8]), String> {
        match self.framing {
            Frame::Raw => Ok((0, value)),
            Frame::Confluent => match value {
                [] => Err(
                    "the value is empty; expected Confluent's five bytes before Avro".to_owned(),
                ),
                [0, a, b, c, d, datum @ ..] => {
                    Ok((u32::from_be_bytes([*a, *b, *c, *d]).into(), datum))
                }
                [0, ..] => Err(format!(
                    "the value has {} bytes; a zero byte and a schema id alone are five: cut off",
                    value.len()
                )),
                [first, ..] => Err(format!(
                    "it begins with the byte {first:#04x}, not with the zero byte before a schema id{}",
                    looks_like(value)
                )),
            },
            Frame::SingleObject => {
                let datum = value.strip_prefix(&SINGLE_OBJECT[..]);
                match datum.and_then(|datum| datum.split_first_chunk::<8>()) {
                    Some((fingerprint, datum)) => Ok((u64::from_le_bytes(*fingerprint), datum)),
                    None if datum.is_some() => Err(
                        "the value ends before its schema's fingerprint does: cut off".to_owned(),
                    ),
                    None => {
                        let mut begin = String::new();
                        for byte in value.iter().take(2) {
                            let _ = write!(begin, " {byte:02x}");
                        }
                        Err(format!(
                            "it begins with{begin}, not with the c3 01 of single-object encoding{}",
                            looks_like(value)
                        ))
                    }
                }
            }
        }
    }

    /// Fills the slots with what is wanted of a value.
    pub(super) fn extract<'f>(
        &self,
        value: &'f [u8],
        plans: &'f Plans,
        found: &mut [Option<Datum<'f>>],
    ) -> Result<(), String> {
        let (key, datum) = self.frame(value)?;
        let Some(planned) = plans.0.get(&key) else {
            return Err("its schema is not known".to_owned());
        };
        match &**planned {
            Err(why) => Err(why.clone()),
            Ok(plan) => plan
                .extract(datum, self.limits, found)
                .map_err(|why| match self.framing {
                    Frame::Confluent => format!("not what schema {key} writes: {why} of the datum"),
                    _ => format!("not what its schema writes: {why} of the datum"),
                }),
        }
    }
}

/// What a value may be that is not framed as it should be.
fn looks_like(value: &[u8]) -> &'static str {
    match value {
        [b'{' | b'[', ..] => "; it looks like JSON",
        [0xc3, 0x01, ..] => "; it looks like single-object encoding",
        [0, _, _, _, _, ..] => "; it looks like Confluent's framing",
        [b'O', b'b', b'j', 1, ..] => "; it looks like a whole Avro file",
        _ => "",
    }
}
