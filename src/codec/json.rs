//! Picks the wanted fields out of a JSON object in one pass, without building a tree. Arrays inside are
//! gone through only where a pointer has an index.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::avro::{index, tokens};

/// A path that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) pointer: String,
    /// Whether what is there decides about the event, so that it must not be there twice.
    pub(super) strict: bool,
}

/// Which fields of an object, or items of an array, are wanted, and the slot each goes to.
#[derive(Debug, Default)]
pub(super) struct Layout {
    fields: Vec<Field>,
    slots: usize,
    /// Slots that want all of it.
    whole: Vec<usize>,
}

#[derive(Debug)]
struct Field {
    name: String,
    /// The item that the name means in an array.
    index: Option<usize>,
    /// Slots that want the field itself.
    slots: Vec<usize>,
    /// What is wanted inside the field.
    inside: Layout,
    /// Whether it must not occur twice, since something inside decides about the event.
    strict: bool,
}

/// The wanted values of one object, by slot, as they stand in the payload.
pub(super) type Slots<'p> = [Option<&'p RawValue>];

impl Layout {
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.whole.is_empty()
    }

    /// For these JSON pointers, each with the slot of its number.
    pub(super) fn new(pointers: &[Wanted]) -> Self {
        Self::of(pointers.len(), pointers.iter().enumerate())
    }

    /// For some of so many slots.
    pub(super) fn of<'p>(
        slots: usize,
        wanted: impl IntoIterator<Item = (usize, &'p Wanted)>,
    ) -> Self {
        let mut layout = Self {
            slots,
            ..Self::default()
        };
        for (slot, Wanted { pointer, strict }) in wanted {
            layout.add(pointer, slot, *strict);
        }
        layout
    }

    /// Adds a JSON pointer, whose value goes to a slot.
    fn add(&mut self, pointer: &str, slot: usize, strict: bool) {
        if pointer.is_empty() {
            self.whole.push(slot);
        }
        let mut layout = self;
        let mut tokens = tokens(pointer).peekable();
        while let Some(name) = tokens.next() {
            let at = match layout.fields.iter().position(|field| field.name == name) {
                Some(at) => at,
                None => {
                    layout.fields.push(Field {
                        index: index(&name),
                        name,
                        slots: Vec::new(),
                        inside: Self::default(),
                        strict: false,
                    });
                    layout.fields.len() - 1
                }
            };
            let field = &mut layout.fields[at];
            field.strict |= strict;
            if tokens.peek().is_none() {
                field.slots.push(slot);
            }
            layout = &mut field.inside;
        }
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Fills the slots anew. A name that occurs twice counts as its last, unless it decides about the event: then
    /// nobody can tell what was meant.
    pub(super) fn extract<'p>(
        &self,
        payload: &'p [u8],
        found: &mut Slots<'p>,
    ) -> Result<(), String> {
        found.fill(None);
        if self.is_empty() {
            return Ok(());
        }
        if payload.is_empty() {
            return Err("the value is empty; expected a JSON object".to_owned());
        }
        if !self.whole.is_empty() {
            let whole = serde_json::from_slice(payload)
                .map_err(|error| format!("the value is not JSON: {error}"))?;
            for slot in &self.whole {
                found[*slot] = Some(whole);
            }
        }
        if self.fields.is_empty() {
            return Ok(());
        }
        let mut json = serde_json::Deserializer::from_slice(payload);
        json.deserialize_map(Fields {
            layout: self,
            found,
        })
        .and_then(|()| json.end())
        .map_err(|error| format!("the value is not a JSON object: {error}"))
    }

    fn forget(&self, found: &mut Slots<'_>) {
        for field in &self.fields {
            for slot in &field.slots {
                found[*slot] = None;
            }
            field.inside.forget(found);
        }
    }

    fn descend<'p>(&self, raw: &'p RawValue, found: &mut Slots<'p>) -> serde_json::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let layout = self;
        let has_index = || layout.fields.iter().any(|field| field.index.is_some());
        let mut json = serde_json::Deserializer::from_str(raw.get());
        match raw.get().as_bytes().first() {
            Some(b'{') => json.deserialize_map(Fields { layout, found }),
            Some(b'[') if has_index() => json.deserialize_seq(Items { layout, found }),
            _ => Ok(()),
        }
    }
}

impl Field {
    fn fill<'p>(&self, raw: &'p RawValue, found: &mut Slots<'p>) -> serde_json::Result<()> {
        // The last of a name counts as a whole: nothing inside an earlier one is kept.
        self.inside.forget(found);
        for slot in &self.slots {
            found[*slot] = Some(raw);
        }
        self.inside.descend(raw, found)
    }
}

struct Fields<'l, 'p> {
    layout: &'l Layout,
    found: &'l mut Slots<'p>,
}

impl<'p> Visitor<'p> for Fields<'_, 'p> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'p>>(self, mut map: M) -> Result<(), M::Error> {
        // One bit for each strict field; of so many there are never.
        let mut seen = 0_u128;
        while let Some(at) = map.next_key_seed(Name(self.layout))? {
            match at {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(at) => {
                    let field = &self.layout.fields[at];
                    let bit = 1_u128.checked_shl(at as u32).unwrap_or(0);
                    if field.strict && seen & bit != 0 {
                        return Err(M::Error::custom(format!("`{}` occurs twice", field.name)));
                    }
                    seen |= bit;
                    let named = |error| M::Error::custom(format!("`{}`: {error}", field.name));
                    let raw: &'p RawValue = map.next_value().map_err(named)?;
                    field.fill(raw, self.found).map_err(M::Error::custom)?;
                }
            }
        }
        Ok(())
    }
}

struct Items<'l, 'p> {
    layout: &'l Layout,
    found: &'l mut Slots<'p>,
}

impl<'p> Visitor<'p> for Items<'_, 'p> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<S: SeqAccess<'p>>(self, mut items: S) -> Result<(), S::Error> {
        for at in 0.. {
            let wanted = |field: &&Field| field.index == Some(at);
            match self.layout.fields.iter().find(wanted) {
                None => {
                    if items.next_element::<IgnoredAny>()?.is_none() {
                        break;
                    }
                }
                Some(field) => {
                    let Some(raw) = items.next_element()? else {
                        break;
                    };
                    field.fill(raw, self.found).map_err(S::Error::custom)?;
                }
            }
        }
        Ok(())
    }
}

/// Looks a field name up without keeping it.
struct Name<'l>(&'l Layout);

impl<'p> DeserializeSeed<'p> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'p>>(self, name: D) -> Result<Self::Value, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.fields.iter().position(|field| field.name == name))
    }
}
