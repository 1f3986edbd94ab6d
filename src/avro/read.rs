//! Goes through the bytes of a datum as a plan says.
//!
//! Every length is compared with what is left before anything is done with it.

use super::Limits;
use super::datum::{self, Datum};
use super::plan::{Inside, Node, NodeId, Plan, Skip, SkipId, Step, Take};
use super::schema::Meaning;

/// What is wrong with the bytes, and where.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: String,
}

type Read<T> = Result<T, Fault>;

/// What a plan has taken out, by slot.
pub(crate) type Slots<'p> = [Option<Datum<'p>>];

impl Plan {
    /// Fills the slots anew from one datum, which must end where the bytes do.
    ///
    /// # Errors
    /// What is wrong with the bytes, and at which of them.
    pub(crate) fn extract<'p>(
        &'p self,
        bytes: &'p [u8],
        limits: Limits,
        found: &mut Slots<'p>,
    ) -> Result<(), String> {
        found.fill(None);
        let mut reader = Reader {
            plan: self,
            cursor: Cursor::plain(bytes),
            limits,
            items: limits.items_max,
            nesting: 0,
        };
        let read = reader.take(&self.root, found);
        read.and_then(|()| reader.cursor.end())
            .map_err(|Fault { at, what }| format!("{what}, at byte {at}"))
    }
}

/// A place in bytes.
pub(super) struct Cursor<'p> {
    bytes: &'p [u8],
    at: usize,
}

impl<'p> Cursor<'p> {
    pub(super) fn plain(bytes: &'p [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn fault<T>(&self, what: impl Into<String>) -> Read<T> {
        Err(Fault {
            at: self.at,
            what: what.into(),
        })
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn end(&self) -> Read<()> {
        match self.left() {
            0 => Ok(()),
            left => self.fault(format!(
                "{left} bytes are left over: written with another schema, or more than one datum"
            )),
        }
    }

    fn take(&mut self, count: usize) -> Read<&'p [u8]> {
        if count > self.left() {
            return self.fault(format!(
                "{count} bytes are wanted and {} are left: cut off, or written with another schema",
                self.left()
            ));
        }
        let from = self.at;
        self.at += count;
        Ok(&self.bytes[from..self.at])
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let taken = self.take(N)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(taken);
        Ok(bytes)
    }

    /// A number of up to 64 bits, in zigzag.
    pub(super) fn long(&mut self) -> Read<i64> {
        let from = self.at;
        let mut number: u64 = 0;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.bytes.get(self.at) else {
                return self.fault("a number is cut off");
            };
            self.at += 1;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                let half = i64::try_from(number >> 1).unwrap_or(i64::MAX);
                return Ok(if number & 1 == 0 { half } else { !half });
            }
        }
        self.at = from;
        self.fault("a number has more than 64 bits")
    }

    fn int(&mut self) -> Read<i64> {
        let from = self.at;
        let number = self.long()?;
        if i32::try_from(number).is_err() {
            self.at = from;
            return self.fault(format!("{number} is no int of 32 bits"));
        }
        Ok(number)
    }

    fn boolean(&mut self) -> Read<bool> {
        match self.take(1)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => {
                self.at -= 1;
                self.fault(format!("byte {other:#04x} is neither true nor false"))
            }
        }
    }

    pub(super) fn bytes(&mut self) -> Read<&'p [u8]> {
        let from = self.at;
        let length = self.long()?;
        match usize::try_from(length) {
            Ok(length) => self.take(length),
            Err(_) => {
                self.at = from;
                self.fault(format!("a length of {length}"))
            }
        }
    }

    fn text(&mut self) -> Read<&'p str> {
        let from = self.at;
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).or_else(|_| {
            self.at = from;
            self.fault("a string is not UTF-8")
        })
    }

    fn index(&mut self, count: usize, of: &str) -> Read<usize> {
        let from = self.at;
        let index = self.long()?;
        match usize::try_from(index).ok().filter(|index| *index < count) {
            Some(index) => Ok(index),
            None => {
                self.at = from;
                self.fault(format!("{of} {index} of {count}"))
            }
        }
    }
}

struct Reader<'p> {
    plan: &'p Plan,
    cursor: Cursor<'p>,
    limits: Limits,
    /// Items still allowed.
    items: usize,
    nesting: usize,
}

impl<'p> Reader<'p> {
    /// Something inside something.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        let max = self.limits.nesting_max;
        if self.nesting == max {
            return self
                .cursor
                .fault(format!("nested deeper than {max} (decode.nesting_max)"));
        }
        // Counted too: a schema can have more of them, in no bytes at all, than anybody can walk through.
        self.spend(1)?;
        self.nesting += 1;
        let done = read(self);
        self.nesting -= 1;
        done
    }

    /// How many items the next block of an array or a map has; none after the last.
    fn block(&mut self) -> Read<Option<usize>> {
        let from = self.cursor.at;
        let mut count = self.cursor.long()?;
        if count < 0 {
            // Its size in bytes follows, for those who want to step over it unread.
            self.cursor.long()?;
            count = count.checked_neg().unwrap_or(i64::MAX);
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count == 0 {
            return Ok(None);
        }
        if let Err(fault) = self.spend(count) {
            self.cursor.at = from;
            return Err(Fault { at: from, ..fault });
        }
        Ok(Some(count))
    }

    fn spend(&mut self, items: usize) -> Read<()> {
        let Some(left) = self.items.checked_sub(items) else {
            let max = self.limits.items_max;
            let what = format!("more than {max} items (decode.items_max)");
            return self.cursor.fault(what);
        };
        self.items = left;
        Ok(())
    }

    fn skip(&mut self, id: SkipId) -> Read<()> {
        let plan = self.plan;
        let cursor = &mut self.cursor;
        match &plan.skips[id] {
            Skip::Nothing => Ok(()),
            Skip::Boolean => cursor.boolean().map(drop),
            Skip::Int => cursor.int().map(drop),
            Skip::Long => cursor.long().map(drop),
            Skip::Bytes => cursor.bytes().map(drop),
            Skip::Text => cursor.text().map(drop),
            Skip::Fixed(size) => cursor.take(*size).map(drop),
            Skip::Enum(count) => cursor.index(*count, "symbol").map(drop),
            Skip::Array(items) => self.nested(|reader| {
                while let Some(count) = reader.block()? {
                    for _ in 0..count {
                        reader.skip(*items)?;
                    }
                }
                Ok(())
            }),
            Skip::Map(values) => self.nested(|reader| {
                while let Some(count) = reader.block()? {
                    for _ in 0..count {
                        reader.cursor.text()?;
                        reader.skip(*values)?;
                    }
                }
                Ok(())
            }),
            Skip::Union(branches) => {
                let branch = cursor.index(branches.len(), "branch")?;
                self.nested(|reader| reader.skip(branches[branch]))
            }
            Skip::Record(fields) => {
                self.nested(|reader| fields.iter().try_for_each(|field| reader.skip(*field)))
            }
        }
    }

    fn step(&mut self, step: &'p Step, found: &mut Slots<'p>) -> Read<()> {
        match step {
            Step::Skip(id) => self.skip(*id),
            Step::Take(take) => self.take(take, found),
        }
    }

    fn take(&mut self, take: &'p Take, found: &mut Slots<'p>) -> Read<()> {
        let (from, items) = (self.cursor.at, self.items);
        if let Some(node) = take.node {
            let value = self.value(node)?;
            if let Some((last, others)) = take.slots.split_last() {
                for slot in others {
                    found[*slot].clone_from(&value);
                }
                found[*last] = value;
            }
            if matches!(take.inside, Inside::Nothing) {
                return Ok(());
            }
            // Once more, for what is wanted of its inside.
            (self.cursor.at, self.items) = (from, items);
        }
        match &take.inside {
            Inside::Nothing => self.skip(take.skip),
            Inside::Record { steps, missing } => {
                for (slot, value) in missing {
                    found[*slot].clone_from(value);
                }
                self.nested(|reader| steps.iter().try_for_each(|step| reader.step(step, found)))
            }
            Inside::Union(branches) => {
                let branch = self.cursor.index(branches.len(), "branch")?;
                self.nested(|reader| reader.step(&branches[branch], found))
            }
            Inside::Array { items, others } => self.nested(|reader| {
                let mut at = 0_usize;
                while let Some(count) = reader.block()? {
                    for _ in 0..count {
                        match items.iter().find(|(index, _)| *index == at) {
                            Some((_, step)) => reader.step(step, found)?,
                            None => reader.skip(*others)?,
                        }
                        at += 1;
                    }
                }
                Ok(())
            }),
            Inside::Map { values, others } => self.nested(|reader| {
                while let Some(count) = reader.block()? {
                    for _ in 0..count {
                        let key = reader.cursor.text()?;
                        match values.iter().find(|(name, _)| name == key) {
                            Some((_, step)) => reader.step(step, found)?,
                            None => reader.skip(*others)?,
                        }
                    }
                }
                Ok(())
            }),
            Inside::Refused(why) => self.cursor.fault(why.clone()),
        }
    }

    /// A whole value; none for null.
    fn value(&mut self, id: NodeId) -> Read<Option<Datum<'p>>> {
        let node = self.plan.node(id);
        if node.is_tree() {
            let mut json = String::new();
            self.json(id, &mut json)?;
            return Ok((json != "null").then_some(Datum::Tree(json)));
        }
        self.scalar(node)
    }

    fn scalar(&mut self, node: &'p Node) -> Read<Option<Datum<'p>>> {
        let from = self.cursor.at;
        let cursor = &mut self.cursor;
        let value = match node {
            Node::Null => return Ok(None),
            Node::Boolean => Ok(Datum::Boolean(cursor.boolean()?)),
            Node::Int(meaning) => Datum::of_integer(cursor.int()?, *meaning),
            Node::Long(meaning) => Datum::of_integer(cursor.long()?, *meaning),
            #[allow(
                clippy::cast_precision_loss,
                reason = "the specification promotes so, and so do all others"
            )]
            Node::IntAsFloat => Ok(Datum::Float(cursor.int()? as f64)),
            #[allow(
                clippy::cast_precision_loss,
                reason = "the specification promotes so, and so do all others"
            )]
            Node::LongAsFloat => Ok(Datum::Float(cursor.long()? as f64)),
            Node::Float => Ok(Datum::Float(f32::from_le_bytes(cursor.array()?).into())),
            Node::Double => Ok(Datum::Float(f64::from_le_bytes(cursor.array()?))),
            Node::Bytes(meaning) => Datum::of_bytes(cursor.bytes()?, *meaning),
            Node::Fixed(size, meaning) => Datum::of_bytes(cursor.take(*size)?, *meaning),
            Node::Text(meaning) => Datum::of_text(cursor.text()?, *meaning),
            Node::TextAsBytes => Datum::of_bytes(cursor.text()?.as_bytes(), Meaning::Plain),
            Node::Enum(symbols) => {
                let index = cursor.index(symbols.len(), "symbol")?;
                match &symbols[index] {
                    Ok(symbol) => Datum::of_text(symbol, Meaning::Plain),
                    Err(unknown) => Err(format!(
                        "symbol `{unknown}`, which the schema that reads does not have, and it has no default"
                    )),
                }
            }
            Node::Union(branches) => {
                let branch = cursor.index(branches.len(), "branch")?;
                return self.nested(|reader| reader.value(branches[branch]));
            }
            Node::Refused(why) => Err(why.clone()),
            Node::Array(_) | Node::Map(_) | Node::Record { .. } => Ok(Datum::Tree(String::new())),
        };
        value.map(Some).map_err(|what| Fault { at: from, what })
    }

    /// Appends a value as JSON.
    fn json(&mut self, id: NodeId, json: &mut String) -> Read<()> {
        let node = self.plan.node(id);
        match node {
            Node::Array(items) => {
                json.push('[');
                self.nested(|reader| {
                    while let Some(count) = reader.block()? {
                        for _ in 0..count {
                            reader.json(*items, json)?;
                            json.push(',');
                        }
                    }
                    Ok(())
                })?;
                close(json, ']');
            }
            Node::Map(values) => {
                json.push('{');
                self.nested(|reader| {
                    while let Some(count) = reader.block()? {
                        for _ in 0..count {
                            datum::write_string(reader.cursor.text()?, json);
                            json.push(':');
                            reader.json(*values, json)?;
                            json.push(',');
                        }
                    }
                    Ok(())
                })?;
                close(json, '}');
            }
            Node::Record { fields, missing } => {
                json.push('{');
                self.nested(|reader| {
                    for (name, of) in fields {
                        match (name, of) {
                            (Some(name), Ok(node)) => {
                                json.push_str(name);
                                reader.json(*node, json)?;
                                json.push(',');
                            }
                            (_, Err(skip)) => reader.skip(*skip)?,
                            (None, Ok(_)) => {}
                        }
                    }
                    for (name, value) in missing {
                        json.push_str(name);
                        json.push_str(value);
                        json.push(',');
                    }
                    Ok(())
                })?;
                close(json, '}');
            }
            Node::Union(branches) => {
                let branch = self.cursor.index(branches.len(), "branch")?;
                self.nested(|reader| reader.json(branches[branch], json))?;
            }
            _ => {
                let from = self.cursor.at;
                match self.scalar(node)? {
                    None => json.push_str("null"),
                    Some(value) => value
                        .write_json(json)
                        .map_err(|what| Fault { at: from, what })?,
                }
            }
        }
        let max = self.limits.text_bytes_max;
        match json.len() > max {
            true => self.cursor.fault(format!(
                "more than {max} bytes as JSON (decode.value_bytes_max)"
            )),
            false => Ok(()),
        }
    }
}

/// Ends an array or an object; the comma after its last item goes.
fn close(json: &mut String, with: char) {
    if json.ends_with(',') {
        json.pop();
    }
    json.push(with);
}
