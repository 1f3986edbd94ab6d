//! What to do with the bytes of a writer's schema so that a reader gets what it wants.
//!
//! Made once for a pair of schemas. Two lists of nodes, since types may refer to themselves: how to step over a
//! writer's type, and how to read one as a reader's type. On top a tree that follows the wanted paths, which end.
//! What cannot be resolved is a node that says why, met only by data that goes there.

use std::collections::HashMap;

use super::Limits;
use super::datum::Datum;
use super::encode::encode_at;
use super::schema::{Id, Meaning, Schema, Type};

pub(super) type SkipId = usize;
pub(super) type NodeId = usize;

/// Parts of a plan: two schemas can have more pairs of types than anybody needs.
const PARTS_MAX: usize = 100_000;

/// How a writer's schema is read as a reader's.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) root: Take,
    pub(super) skips: Vec<Skip>,
    nodes: Vec<Node>,
}

/// A path into a datum, and the slot for what is there.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) path: Vec<String>,
    pub(crate) slot: usize,
}

/// How to step over a value.
#[derive(Debug)]
pub(super) enum Skip {
    Nothing,
    Boolean,
    Int,
    Long,
    Bytes,
    Text,
    Fixed(usize),
    Enum(usize),
    Array(SkipId),
    Map(SkipId),
    Union(Vec<SkipId>),
    Record(Vec<SkipId>),
}

/// How to read a whole value.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Boolean,
    Int(Meaning),
    Long(Meaning),
    IntAsFloat,
    LongAsFloat,
    Float,
    Double,
    Bytes(Meaning),
    Fixed(usize, Meaning),
    Text(Meaning),
    TextAsBytes,
    /// By the writer's numbers: the reader's symbols, or what it does not know.
    Enum(Vec<Result<String, String>>),
    Array(NodeId),
    Map(NodeId),
    /// By the writer's branches.
    Union(Vec<NodeId>),
    Record {
        /// In the writer's order: the reader's name as the beginning of a JSON member, and how to read it.
        fields: Vec<(Option<String>, Result<NodeId, SkipId>)>,
        /// What only the reader has, as JSON.
        missing: Vec<(String, String)>,
    },
    Refused(String),
}

impl Node {
    /// Whether it may be a value with an inside.
    pub(super) fn is_tree(&self) -> bool {
        matches!(self, Self::Array(_) | Self::Map(_) | Self::Record { .. })
    }
}

/// What is wanted at one place.
#[derive(Debug)]
pub(super) struct Take {
    /// How to read it, if it is wanted as a whole, and the slots it goes to.
    pub(super) node: Option<NodeId>,
    pub(super) slots: Vec<usize>,
    pub(super) skip: SkipId,
    pub(super) inside: Inside,
}

#[derive(Debug)]
pub(super) enum Inside {
    /// Nothing is wanted in there, or there is no inside.
    Nothing,
    Record {
        steps: Vec<Step>,
        /// Values of slots that only the reader's schema has: defaults.
        missing: Vec<(usize, Option<Datum<'static>>)>,
    },
    Union(Vec<Step>),
    Array {
        items: Vec<(usize, Step)>,
        others: SkipId,
    },
    Map {
        values: Vec<(String, Step)>,
        others: SkipId,
    },
    Refused(String),
}

#[derive(Debug)]
pub(super) enum Step {
    Skip(SkipId),
    Take(Take),
}

/// The steps of a JSON pointer, by RFC 6901.
pub(crate) fn tokens(pointer: &str) -> impl Iterator<Item = String> {
    let steps = pointer.split('/').skip(1);
    steps.map(|token| token.replace("~1", "/").replace("~0", "~"))
}

/// The item that such a step means in an array: digits without a leading zero.
pub(crate) fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|b| b.is_ascii_digit());
    let leading_zero = token.len() > 1 && token.starts_with('0');
    token.parse().ok().filter(|_| digits && !leading_zero)
}

impl Plan {
    /// How data of the writer's schema is read by the reader's.
    ///
    /// # Errors
    /// When nothing that is written so can be read so.
    pub(crate) fn new(writer: &Schema, reader: &Schema, wanted: &[Wanted]) -> Result<Self, String> {
        let paths = wanted.iter().map(|w| (w.path.as_slice(), w.slot)).collect();
        let plan = Making::new(writer, reader).plan(writer.root, reader.root, paths)?;
        match &plan.root.inside {
            Inside::Refused(why) => Err(why.clone()),
            _ => Ok(plan),
        }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }
}

struct Making<'s> {
    writer: &'s Schema,
    reader: &'s Schema,
    skips: Vec<Skip>,
    nodes: Vec<Node>,
    skip_of: HashMap<Id, SkipId>,
    node_of: HashMap<(Id, Id), NodeId>,
    /// What has a place and is not made yet. A list, and no calls into what is inside, since a chain of types may be
    /// of any length.
    open_skips: Vec<(SkipId, Id)>,
    open_nodes: Vec<(NodeId, Id, Id)>,
    takes: usize,
}

/// Paths that are wanted from here on, with their slots.
type Paths<'w> = Vec<(&'w [String], usize)>;

/// The paths that go on with a step, by step.
fn by_step<'w>(paths: &Paths<'w>) -> Vec<(&'w str, Paths<'w>)> {
    let mut steps: Vec<(&str, Paths<'w>)> = Vec::new();
    for (path, slot) in paths {
        let Some((first, rest)) = path.split_first() else {
            continue;
        };
        match steps.iter_mut().find(|(step, _)| step == first) {
            Some((_, inside)) => inside.push((rest, *slot)),
            None => steps.push((first, vec![(rest, *slot)])),
        }
    }
    steps
}

impl<'s> Making<'s> {
    fn new(writer: &'s Schema, reader: &'s Schema) -> Self {
        Self {
            writer,
            reader,
            skips: Vec::new(),
            nodes: Vec::new(),
            skip_of: HashMap::new(),
            node_of: HashMap::new(),
            open_skips: Vec::new(),
            open_nodes: Vec::new(),
            takes: 0,
        }
    }

    fn plan(mut self, written: Id, read: Id, paths: Paths<'_>) -> Result<Plan, String> {
        let root = self.take(written, read, paths);
        while !self.is_too_large()
            && let Some((place, written, read)) = self.open_nodes.pop()
        {
            self.nodes[place] = self.resolve(written, read).unwrap_or_else(Node::Refused);
        }
        while let Some((place, written)) = self.open_skips.pop() {
            self.skips[place] = self.skip_over(written);
        }
        match self.is_too_large() {
            true => Err(format!(
                "the schema that writes and the one that reads have more than {PARTS_MAX} pairs of types"
            )),
            false => Ok(Plan {
                root,
                skips: self.skips,
                nodes: self.nodes,
            }),
        }
    }

    fn is_too_large(&self) -> bool {
        self.nodes.len() + self.takes > PARTS_MAX
    }

    fn skip(&mut self, id: Id) -> SkipId {
        *self.skip_of.entry(id).or_insert_with(|| {
            let place = self.skips.len();
            self.skips.push(Skip::Nothing);
            self.open_skips.push((place, id));
            place
        })
    }

    fn skip_over(&mut self, id: Id) -> Skip {
        let writer = self.writer;
        match &writer.types[id] {
            Type::Null => Skip::Nothing,
            Type::Boolean => Skip::Boolean,
            Type::Int(_) => Skip::Int,
            Type::Long(_) => Skip::Long,
            Type::Float => Skip::Fixed(4),
            Type::Double => Skip::Fixed(8),
            Type::Bytes(_) => Skip::Bytes,
            Type::String(_) => Skip::Text,
            Type::Fixed { size, .. } => Skip::Fixed(*size),
            Type::Enum { symbols, .. } => Skip::Enum(symbols.len()),
            Type::Array(items) => Skip::Array(self.skip(*items)),
            Type::Map(values) => Skip::Map(self.skip(*values)),
            Type::Union(branches) => Skip::Union(branches.iter().map(|b| self.skip(*b)).collect()),
            Type::Record { fields, .. } => {
                Skip::Record(fields.iter().map(|f| self.skip(f.of)).collect())
            }
        }
    }

    /// How to read a writer's type as a reader's.
    fn node(&mut self, written: Id, read: Id) -> NodeId {
        *self.node_of.entry((written, read)).or_insert_with(|| {
            let place = self.nodes.len();
            self.nodes.push(Node::Null);
            self.open_nodes.push((place, written, read));
            place
        })
    }

    fn resolve(&mut self, written: Id, read: Id) -> Result<Node, String> {
        let (writer, reader) = (self.writer, self.reader);
        let (from, to) = (&writer.types[written], &reader.types[read]);
        if let Type::Union(branches) = from {
            let nodes = branches.iter().map(|branch| self.node(*branch, read));
            return Ok(Node::Union(nodes.collect()));
        }
        if let Type::Union(_) = to {
            let branch = self.branch_for(written, read)?;
            return self.resolve(written, branch);
        }
        let refused = || Err(format!("written as {}, read as {}", from.name(), to.name()));
        let meaning =
            |a: &Meaning, b: &Meaning| meaning(*a, *b).map_or_else(refused_meaning(from, to), Ok);
        Ok(match (from, to) {
            (Type::Null, Type::Null) => Node::Null,
            (Type::Boolean, Type::Boolean) => Node::Boolean,
            (Type::Int(a), Type::Int(b) | Type::Long(b)) => Node::Int(meaning(a, b)?),
            (Type::Long(a), Type::Long(b)) => Node::Long(meaning(a, b)?),
            (Type::Int(_), Type::Float | Type::Double) => Node::IntAsFloat,
            (Type::Long(_), Type::Float | Type::Double) => Node::LongAsFloat,
            (Type::Float, Type::Float | Type::Double) => Node::Float,
            (Type::Double, Type::Double) => Node::Double,
            (Type::Bytes(a), Type::Bytes(b)) => Node::Bytes(meaning(a, b)?),
            (Type::Bytes(Meaning::Plain), Type::String(b)) => Node::Text(*b),
            (Type::String(a), Type::String(b)) => Node::Text(meaning(a, b)?),
            (Type::String(Meaning::Plain), Type::Bytes(Meaning::Plain)) => Node::TextAsBytes,
            (
                Type::Fixed {
                    names,
                    size,
                    meaning: a,
                },
                Type::Fixed {
                    names: own,
                    size: own_size,
                    meaning: b,
                },
            ) if own.reads(names) && size == own_size => Node::Fixed(*size, meaning(a, b)?),
            (
                Type::Enum { names, symbols, .. },
                Type::Enum {
                    names: own,
                    symbols: known,
                    default,
                },
            ) if own.reads(names) => {
                let symbols = symbols.iter().map(|symbol| {
                    let known = known.contains(symbol).then_some(symbol);
                    let read = known.or(default.as_ref()).ok_or(symbol);
                    read.cloned().map_err(Clone::clone)
                });
                Node::Enum(symbols.collect())
            }
            (Type::Array(a), Type::Array(b)) => Node::Array(self.node(*a, *b)),
            (Type::Map(a), Type::Map(b)) => Node::Map(self.node(*a, *b)),
            (
                Type::Record { names, fields },
                Type::Record {
                    names: own,
                    fields: wanted,
                },
            ) if own.reads(names) => {
                let mut found = vec![false; wanted.len()];
                let mut read = Vec::with_capacity(fields.len());
                for field in fields {
                    read.push(match position(wanted, fields, &field.name) {
                        Some(at) => {
                            found[at] = true;
                            let name = member(&wanted[at].name);
                            (Some(name), Ok(self.node(field.of, wanted[at].of)))
                        }
                        None => (None, Err(self.skip(field.of))),
                    });
                }
                let mut missing = Vec::new();
                for (field, _) in wanted.iter().zip(found).filter(|(_, found)| !found) {
                    let value = self.default(field, &[(&[], 0)])?.pop().flatten();
                    let mut json = String::new();
                    match value {
                        None => json.push_str("null"),
                        Some(value) => value.write_json(&mut json)?,
                    }
                    missing.push((member(&field.name), json));
                }
                Node::Record {
                    fields: read,
                    missing,
                }
            }
            (Type::Record { names, .. }, Type::Record { names: own, .. }) => {
                return Err(format!(
                    "written as record `{}`, read as record `{}`; give it an alias if it is the same",
                    names.full, own.full
                ));
            }
            _ => return refused(),
        })
    }

    /// The first branch of a reader's union that a writer's type fits: the same type, then one that it may be
    /// promoted to.
    fn branch_for(&mut self, written: Id, union: Id) -> Result<Id, String> {
        let (writer, reader) = (self.writer, self.reader);
        let from = &writer.types[written];
        let Type::Union(branches) = &reader.types[union] else {
            return Ok(union);
        };
        let own = from.names();
        let same_name = |branch: &&Id| match (own, reader.types[**branch].names()) {
            (Some(own), Some(other)) => other.is(own),
            _ => false,
        };
        let same = |branch: &&Id| {
            std::mem::discriminant(from) == std::mem::discriminant(&reader.types[**branch])
        };
        let exact = branches.iter().filter(same_name);
        let alike = branches.iter().filter(same);
        for branch in exact.chain(alike).chain(branches) {
            if self.fits(written, *branch) {
                return Ok(*branch);
            }
        }
        Err(format!(
            "written as {}, which is no branch of the union that it is read as",
            from.name()
        ))
    }

    /// Whether a type may be read as another, without a look into what is inside.
    fn fits(&self, written: Id, read: Id) -> bool {
        let (from, to) = (&self.writer.types[written], &self.reader.types[read]);
        match (from, to) {
            (Type::Null, Type::Null)
            | (Type::Boolean, Type::Boolean)
            | (Type::Float, Type::Float | Type::Double)
            | (Type::Double, Type::Double)
            | (Type::Int(_) | Type::Long(_), Type::Float | Type::Double)
            | (Type::Array(_), Type::Array(_))
            | (Type::Map(_), Type::Map(_)) => true,
            (Type::Int(a), Type::Int(b) | Type::Long(b))
            | (Type::Long(a), Type::Long(b))
            | (Type::Bytes(a), Type::Bytes(b))
            | (Type::String(a), Type::String(b)) => meaning(*a, *b).is_some(),
            (Type::Bytes(Meaning::Plain), Type::String(_))
            | (Type::String(Meaning::Plain), Type::Bytes(Meaning::Plain)) => true,
            (
                Type::Fixed { names, size, .. },
                Type::Fixed {
                    names: own,
                    size: own_size,
                    ..
                },
            ) => own.reads(names) && size == own_size,
            (Type::Enum { names, .. }, Type::Enum { names: own, .. })
            | (Type::Record { names, .. }, Type::Record { names: own, .. }) => own.reads(names),
            _ => false,
        }
    }

    fn take(&mut self, written: Id, read: Id, paths: Paths<'_>) -> Take {
        let slots: Vec<usize> = paths
            .iter()
            .filter(|(path, _)| path.is_empty())
            .map(|(_, slot)| *slot)
            .collect();
        let skip = self.skip(written);
        Take {
            node: (!slots.is_empty()).then(|| self.node(written, read)),
            slots,
            skip,
            inside: self
                .inside(written, read, paths)
                .unwrap_or_else(Inside::Refused),
        }
    }

    fn step(&mut self, written: Id, read: Id, paths: Paths<'_>) -> Step {
        self.takes += 1;
        if self.is_too_large() {
            return Step::Skip(0);
        }
        Step::Take(self.take(written, read, paths))
    }

    fn inside(&mut self, written: Id, read: Id, paths: Paths<'_>) -> Result<Inside, String> {
        let (writer, reader) = (self.writer, self.reader);
        let steps = by_step(&paths);
        let (from, to) = (&writer.types[written], &reader.types[read]);
        if steps.is_empty() {
            // A root of which nothing is wanted: at least it must be of the kind.
            return match (from, to) {
                (Type::Record { .. }, Type::Record { .. }) if !self.fits(written, read) => {
                    self.resolve(written, read).map(|_| Inside::Nothing)
                }
                _ => Ok(Inside::Nothing),
            };
        }
        let deeper = |paths: &Paths<'_>| -> Vec<(Vec<String>, usize)> {
            let deep = paths.iter().filter(|(path, _)| !path.is_empty());
            deep.map(|(path, slot)| (path.to_vec(), *slot)).collect()
        };
        if let Type::Union(branches) = from {
            let deep = deeper(&paths);
            let mut steps = Vec::with_capacity(branches.len());
            for branch in branches {
                let paths = deep.iter().map(|(path, slot)| (path.as_slice(), *slot));
                let paths = paths.collect();
                steps.push(self.step(*branch, read, paths));
            }
            return Ok(Inside::Union(steps));
        }
        if let Type::Union(_) = to {
            let branch = self.branch_for(written, read)?;
            return self.inside(written, branch, paths);
        }
        match (from, to) {
            (Type::Record { fields, .. }, Type::Record { fields: wanted, .. })
                if self.fits(written, read) =>
            {
                let mut steps_of = Vec::with_capacity(fields.len());
                for field in fields {
                    let at = position(wanted, fields, &field.name);
                    let inside = at.and_then(|at| {
                        let name = &wanted[at].name;
                        let step = steps.iter().find(|(step, _)| step == name)?;
                        Some((wanted[at].of, step.1.clone()))
                    });
                    steps_of.push(match inside {
                        Some((of, paths)) => self.step(field.of, of, paths),
                        None => Step::Skip(self.skip(field.of)),
                    });
                }
                let mut missing = Vec::new();
                let is_written = |name: &str| {
                    let at = wanted.iter().position(|field| field.name == name);
                    at.is_some_and(|at| {
                        let of = |field: &super::schema::Field| {
                            position(wanted, fields, &field.name) == Some(at)
                        };
                        fields.iter().any(of)
                    })
                };
                for (name, paths) in &steps {
                    if is_written(name) {
                        continue;
                    }
                    let Some(field) = wanted.iter().find(|field| field.name == *name) else {
                        continue;
                    };
                    let numbered: Vec<(&[String], usize)> = paths
                        .iter()
                        .enumerate()
                        .map(|(at, (path, _))| (*path, at))
                        .collect();
                    let values = self.default(field, &numbered)?;
                    for ((_, slot), value) in paths.iter().zip(values) {
                        missing.push((*slot, value));
                    }
                }
                Ok(Inside::Record {
                    steps: steps_of,
                    missing,
                })
            }
            (Type::Array(a), Type::Array(b)) => {
                let mut items = Vec::new();
                for (step, paths) in steps {
                    if let Some(at) = index(step) {
                        items.push((at, self.step(*a, *b, paths)));
                    }
                }
                Ok(Inside::Array {
                    items,
                    others: self.skip(*a),
                })
            }
            (Type::Map(a), Type::Map(b)) => {
                let mut values = Vec::new();
                for (step, paths) in steps {
                    values.push((step.to_owned(), self.step(*a, *b, paths)));
                }
                Ok(Inside::Map {
                    values,
                    others: self.skip(*a),
                })
            }
            // A value without an inside: what is wanted of it is not there.
            (from, to)
                if self.fits(written, read) || from.kind() == to.kind() && !is_tree(from) =>
            {
                Ok(Inside::Nothing)
            }
            _ => match self.resolve(written, read) {
                Ok(_) => Ok(Inside::Nothing),
                Err(why) => Err(why),
            },
        }
    }

    /// What a field's default has at these paths: it is written by the reader's schema and read by it.
    fn default(
        &self,
        field: &super::schema::Field,
        paths: &[(&[String], usize)],
    ) -> Result<Vec<Option<Datum<'static>>>, String> {
        let Some(default) = &field.default else {
            return Err(format!(
                "field `{}` was not written, and has no default",
                field.name
            ));
        };
        let mut bytes = Vec::new();
        encode_at(self.reader, field.of, default, &mut bytes)
            .map_err(|why| format!("the default of field `{}`: {why}", field.name))?;
        let making = Making::new(self.reader, self.reader);
        let plan = making.plan(field.of, field.of, paths.to_vec())?;
        let mut found = vec![None; paths.len()];
        let limits = Limits {
            nesting_max: 100,
            items_max: 10_000,
            text_bytes_max: 1 << 20,
        };
        plan.extract(&bytes, limits, &mut found)
            .map_err(|why| format!("the default of field `{}`: {why}", field.name))?;
        Ok(found
            .into_iter()
            .map(|value| value.map(Datum::into_owned))
            .collect())
    }
}

fn is_tree(of: &Type) -> bool {
    matches!(of, Type::Record { .. } | Type::Array(_) | Type::Map(_))
}

/// The reader's field that a writer's field is read as: of the same name, or of that alias where the writer has no
/// field of the reader's name.
fn position(
    reader: &[super::schema::Field],
    writer: &[super::schema::Field],
    name: &str,
) -> Option<usize> {
    let same = reader.iter().position(|field| field.name == name);
    same.or_else(|| {
        reader.iter().position(|field| {
            field.aliases.iter().any(|alias| alias == name)
                && !writer.iter().any(|written| written.name == field.name)
        })
    })
}

/// The beginning of a member of a JSON object.
fn member(name: &str) -> String {
    let mut json = String::new();
    super::datum::write_string(name, &mut json);
    json.push(':');
    json
}

/// What a number means: what the writer says it does. A reader's logical type counts where the writer had none, and
/// must be of the same sort where it had one. None if they contradict each other.
fn meaning(writer: Meaning, reader: Meaning) -> Option<Meaning> {
    let same_sort = std::mem::discriminant(&writer) == std::mem::discriminant(&reader);
    match (writer, reader) {
        (Meaning::Plain, reader) => Some(reader),
        // Read as a bare number, as it was before the writer gave it a meaning.
        (_, Meaning::Plain) => Some(Meaning::Plain),
        (writer, _) => same_sort.then_some(writer),
    }
}

fn refused_meaning(from: &Type, to: &Type) -> impl FnOnce() -> Result<Meaning, String> {
    let why = format!("written as {}, read as {}", from.name(), to.name());
    move || Err(why)
}
