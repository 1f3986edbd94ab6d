//! Enough of SQL's lexical rules to find words, and where a `WITH` goes.

use std::collections::BTreeSet;

/// How the user's statement begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum With {
    None,
    Plain,
    Recursive,
}

/// What the lexer found out about a statement.
#[derive(Debug)]
pub(super) struct Lexed {
    words: BTreeSet<String>,
    /// Bytes before this are replaced by our prefix: leading blanks, comments, and `WITH [RECURSIVE]`.
    pub(super) cut: usize,
    /// Bytes from here on are left out: a trailing semicolon.
    pub(super) end: usize,
    pub(super) with: With,
    /// A `*`, or rows taken as a whole: every column is needed.
    pub(super) names_all: bool,
    /// The `events` of an `UPDATE .. FROM events`, not grouped, in characters of the text.
    pub(super) updates_from_events: Option<usize>,
    /// An INSERT that reads one of our relations and nothing else: any plan for it is as good.
    pub(super) reads_one_relation: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Lower-cased unless quoted.
    Word(String),
    Parameter,
    Symbol(char),
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
    depth: usize,
}

/// What looks at all names.
const ALL_NAMES: [&str; 2] = ["natural", "table"];

impl Lexed {
    /// # Errors
    /// What cannot be wrapped, and where, in characters of the text.
    pub(super) fn new(sql: &str) -> Result<Self, (String, usize)> {
        let chars = |byte: usize| sql[..byte].chars().count();
        if let Some(byte) = sql.find('\0') {
            return Err((
                "a statement cannot hold a NUL character".to_owned(),
                chars(byte),
            ));
        }
        let tokens = tokens(sql).map_err(|(why, byte)| (why, chars(byte)))?;
        let Some(first) = tokens.first() else {
            return Err(("the statement is empty".to_owned(), 0));
        };
        if let Some(parameter) = tokens.iter().find(|t| t.kind == Kind::Parameter) {
            let why =
                "`$n` would name one of tidegate's own arrays; name a column of `events` instead";
            return Err((why.to_owned(), chars(parameter.start)));
        }
        if first.kind == Kind::Symbol('(') {
            let why = "a statement cannot begin with `(`; remove the parentheses";
            return Err((why.to_owned(), chars(first.start)));
        }
        let end = match tokens.last() {
            Some(last) if last.kind == Kind::Symbol(';') => last.start,
            _ => sql.len(),
        };
        let more = |t: &&Token| t.kind == Kind::Symbol(';') && t.start < end;
        if let Some(semicolon) = tokens.iter().find(more) {
            let why = "more than one statement; write the next one as an entry of its own";
            return Err((why.to_owned(), chars(semicolon.start)));
        }
        let (with, cut) = match (word(&tokens, 0), word(&tokens, 1)) {
            (Some("with"), Some("recursive")) => (With::Recursive, tokens[1].end),
            (Some("with"), _) => (With::Plain, tokens[0].end),
            _ => (With::None, first.start),
        };
        for (index, token) in tokens.iter().enumerate() {
            let ours = matches!(word(&tokens, index), Some("events" | "latest"));
            let defined =
                word(&tokens, index + 1) == Some("as") && symbol(&tokens, index + 2) == Some('(');
            if ours && (defined || is_target(&tokens[..index])) {
                let why = "`events` and `latest` are tidegate's; give this one another name";
                return Err((why.to_owned(), chars(token.start)));
            }
        }
        let words: BTreeSet<String> = (0..tokens.len())
            .filter(|index| !names_something_else(&tokens, *index))
            .filter_map(|index| word(&tokens, index).map(str::to_owned))
            .collect();
        let names_all = ALL_NAMES.iter().any(|name| words.contains(*name))
            || takes_rows(&tokens)
            || (0..tokens.len()).any(|index| is_star(&tokens, index));
        Ok(Self {
            names_all,
            updates_from_events: updates_from_events(&tokens).map(chars),
            reads_one_relation: reads_one_relation(&tokens),
            words,
            cut,
            end,
            with,
        })
    }

    pub(super) fn names(&self, word: &str) -> bool {
        self.words.contains(word)
    }
}

/// What makes it impossible to run a script of several statements in a transaction, and where, in
/// characters of the text. Whatever else is wrong with it is for Postgres to say.
pub(crate) fn script_problem(sql: &str) -> Option<(String, usize)> {
    let chars = |byte: usize| sql[..byte].chars().count();
    if let Some(byte) = sql.find('\0') {
        return Some(("holds a NUL character".to_owned(), chars(byte)));
    }
    let tokens = tokens(sql).ok()?;
    // END also ends the body of such a function, in which statements are not at their beginning.
    let has_bodies = (0..tokens.len()).any(|index| word(&tokens, index) == Some("atomic"));
    let ends_transaction = |index: usize| {
        let begins = index == 0 || symbol(&tokens, index - 1) == Some(';');
        let rest = || (index + 1..tokens.len()).map_while(|index| word(&tokens, index));
        match word(&tokens, index) {
            Some("commit" | "abort") => begins,
            Some("rollback") => begins && !rest().any(|word| word == "to"),
            Some("end") => begins && !has_bodies,
            Some("prepare") => begins && rest().next() == Some("transaction"),
            _ => false,
        }
    };
    let at = (0..tokens.len()).find(|index| ends_transaction(*index))?;
    let why = "ends the transaction that it runs in; remove this: all of it commits at once";
    Some((why.to_owned(), chars(tokens[at].start)))
}

/// The statements of a script, each with where it begins, in characters of the text.
///
/// None if they cannot be told apart: the bodies of functions hold semicolons too.
pub(super) fn statements(sql: &str) -> Option<Vec<(usize, &str)>> {
    let tokens = tokens(sql).ok()?;
    if (0..tokens.len()).any(|index| word(&tokens, index) == Some("atomic")) {
        return None;
    }
    let mut statements = Vec::new();
    let mut start = None;
    let end = |at: usize| tokens.get(at).map_or(sql.len(), |token| token.start);
    for at in 0..=tokens.len() {
        if at == tokens.len() || symbol(&tokens, at) == Some(';') {
            statements.extend(start.take().map(|start| (start, end(at))));
        } else {
            start.get_or_insert(tokens[at].start);
        }
    }
    let place = |(start, end): (usize, usize)| (sql[..start].chars().count(), &sql[start..end]);
    Some(statements.into_iter().map(place).collect())
}

/// Where a word stands last, in characters of the text.
pub(crate) fn last_word(sql: &str, wanted: &str) -> Option<usize> {
    let tokens = tokens(sql).ok()?;
    let at = (0..tokens.len())
        .rev()
        .find(|index| word(&tokens, *index) == Some(wanted))?;
    Some(sql[..tokens[at].start].chars().count())
}

/// The word that begins at a character of the text.
pub(super) fn word_at(sql: &str, position: usize) -> Option<String> {
    let (byte, _) = sql.char_indices().nth(position)?;
    let tokens = tokens(sql).ok()?;
    let index = tokens.iter().position(|token| token.start == byte)?;
    word(&tokens, index).map(str::to_owned)
}

fn symbol(tokens: &[Token], index: usize) -> Option<char> {
    match tokens.get(index)?.kind {
        Kind::Symbol(symbol) => Some(symbol),
        _ => None,
    }
}

fn word(tokens: &[Token], index: usize) -> Option<&str> {
    match &tokens.get(index)?.kind {
        Kind::Word(word) => Some(word),
        _ => None,
    }
}

/// A column, an alias or another schema's table that is called as a relation of ours is.
fn names_something_else(tokens: &[Token], index: usize) -> bool {
    let ours = matches!(word(tokens, index), Some("events" | "latest"));
    ours && index.checked_sub(1).is_some_and(|before| {
        symbol(tokens, before) == Some('.') || word(tokens, before) == Some("as")
    })
}

/// Whether what comes next is the table that a statement writes.
fn is_target(before: &[Token]) -> bool {
    let words = (0..before.len()).rev().map(|index| word(before, index));
    let mut words = words.filter(|word| *word != Some("only"));
    match words.next().flatten() {
        Some("into" | "update") => true,
        Some("from") => words.next().flatten() == Some("delete"),
        _ => false,
    }
}

/// A `*` that means all columns, not a product and not `count(*)`.
fn is_star(tokens: &[Token], index: usize) -> bool {
    if symbol(tokens, index) != Some('*') || index == 0 {
        return false;
    }
    match &tokens[index - 1].kind {
        Kind::Symbol(',' | '.') => true,
        Kind::Symbol('(') => false,
        Kind::Word(word) if matches!(&**word, "select" | "distinct" | "all" | "returning") => true,
        // As in `DISTINCT ON (account) * FROM`: a product would have a second factor.
        _ => match tokens.get(index + 1).map(|token| &token.kind) {
            None | Some(Kind::Symbol(',' | ')' | ';')) => true,
            Some(Kind::Word(word)) => matches!(&**word, "from" | "into" | "where"),
            Some(_) => false,
        },
    }
}

/// Words that can follow a relation in FROM and do not rename it.
const NOT_AN_ALIAS: [&str; 28] = [
    "cross",
    "except",
    "fetch",
    "for",
    "full",
    "group",
    "having",
    "inner",
    "intersect",
    "join",
    "left",
    "limit",
    "natural",
    "offset",
    "on",
    "order",
    "returning",
    "right",
    "select",
    "set",
    "tablesample",
    "union",
    "using",
    "values",
    "when",
    "where",
    "window",
    "with",
];

/// Whether the rows of `events` or `latest` are taken as a whole, as in `to_jsonb(e)`: every use of
/// the relation's name that neither puts it into a FROM nor is followed by `.column` counts.
fn takes_rows(tokens: &[Token]) -> bool {
    let mut aliases: Vec<(usize, &str)> = Vec::new();
    for index in 0..tokens.len() {
        let Some("events" | "latest") = word(tokens, index) else {
            continue;
        };
        let before = index.checked_sub(1).and_then(|before| word(tokens, before));
        if !matches!(before, Some("from" | "join" | "using" | "only")) {
            // In a list of relations it may be renamed too, but then its columns are named by the alias.
            if symbol(tokens, index + 1) != Some('.') {
                return true;
            }
            continue;
        }
        let at = index + 1 + usize::from(word(tokens, index + 1) == Some("as"));
        match word(tokens, at) {
            Some(alias) if !NOT_AN_ALIAS.contains(&alias) => aliases.push((at, alias)),
            _ => {}
        }
    }
    aliases.iter().any(|(_, alias)| {
        let used = |index: usize| {
            let defined = aliases.contains(&(index, alias));
            match symbol(tokens, index + 1) {
                // The alias of every column, by place.
                Some('(') if defined => true,
                Some('.') => false,
                _ => !defined,
            }
        };
        (0..tokens.len()).any(|index| word(tokens, index) == Some(alias) && used(index))
    })
}

/// Whether this is an INSERT whose one SELECT reads a relation of ours, and nothing beside it.
fn reads_one_relation(tokens: &[Token]) -> bool {
    let count = |name: &str| {
        (0..tokens.len())
            .filter(|i| word(tokens, *i) == Some(name))
            .count()
    };
    let more = [
        "join",
        "lateral",
        "exists",
        "with",
        "union",
        "intersect",
        "except",
    ];
    if word(tokens, 0) != Some("insert")
        || count("select") != 1
        || count("from") != 1
        || more.iter().any(|name| count(name) > 0)
    {
        return false;
    }
    let Some(from) = (0..tokens.len()).find(|i| word(tokens, *i) == Some("from")) else {
        return false;
    };
    let ours = matches!(word(tokens, from + 1), Some("events" | "latest"));
    // Past an alias, with or without AS, up to the next clause: a comma would bring another relation in.
    let alias = from + 2..from + 5;
    let clause = alias.clone().find(|i| {
        matches!(
            word(tokens, *i),
            Some("where" | "group" | "having" | "window" | "order" | "limit" | "on" | "returning")
        )
    });
    let list_end = clause.unwrap_or(alias.end);
    ours && !(alias.start..list_end).any(|i| symbol(tokens, i) == Some(','))
}

/// Where an UPDATE joins its rows with `events` directly.
fn updates_from_events(tokens: &[Token]) -> Option<usize> {
    let mut updating: Option<usize> = None;
    let mut listing = false;
    for token in tokens {
        match &token.kind {
            Kind::Word(word) if word == "update" => updating = Some(token.depth),
            Kind::Word(word) if Some(token.depth) == updating => match &**word {
                "from" | "join" => listing = true,
                "where" | "on" | "returning" | "set" => listing = false,
                "events" if listing => return Some(token.start),
                // An upsert's DO UPDATE, or a locking clause, has no FROM of its own.
                "insert" | "select" | "delete" | "merge" => updating = None,
                _ => {}
            },
            _ => {}
        }
    }
    None
}

/// As Postgres has it: whatever is not ASCII is part of a name.
fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

/// Words, parameters and symbols; comments, strings and blanks are passed over.
fn tokens(sql: &str) -> Result<Vec<Token>, (String, usize)> {
    let bytes = sql.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let rest = &sql[at..];
        let kind = match byte {
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'-' if rest.starts_with("--") => {
                at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                continue;
            }
            b'/' if rest.starts_with("/*") => {
                at += comment(rest).ok_or_else(|| ("a comment does not end".to_owned(), start))?;
                continue;
            }
            b'\'' => {
                // A backslash escapes only in E'..'.
                let escapes = matches!(sql[..at].chars().next_back(), Some('e' | 'E'))
                    && !sql[..at - 1].ends_with(in_name);
                at += string(rest, escapes)
                    .ok_or_else(|| ("a string does not end".to_owned(), start))?;
                continue;
            }
            b'"' => {
                let length =
                    quoted(rest).ok_or_else(|| ("a quoted name does not end".to_owned(), start))?;
                at += length;
                Kind::Word(rest[1..length - 1].replace("\"\"", "\""))
            }
            b'$' => match dollar(rest) {
                Dollar::Parameter(length) => {
                    at += length;
                    Kind::Parameter
                }
                Dollar::String(length) => {
                    at += length;
                    continue;
                }
                Dollar::Open => {
                    return Err(("a dollar-quoted string does not end".to_owned(), start));
                }
                Dollar::Symbol => {
                    at += 1;
                    Kind::Symbol('$')
                }
            },
            _ => {
                let length = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
                if length > 0 {
                    at += length;
                    Kind::Word(rest[..length].to_ascii_lowercase())
                } else {
                    let symbol = rest.chars().next().unwrap_or(' ');
                    at += symbol.len_utf8();
                    if symbol == ')' {
                        depth = depth.saturating_sub(1);
                    }
                    Kind::Symbol(symbol)
                }
            }
        };
        let open = kind == Kind::Symbol('(');
        tokens.push(Token {
            kind,
            start,
            end: at,
            depth,
        });
        if open {
            depth += 1;
        }
    }
    Ok(tokens)
}

/// The length of a comment, which may hold others.
fn comment(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
    None
}

/// The length of a string, in which a quote is doubled.
fn string(rest: &str, escapes: bool) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if escapes => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

fn quoted(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' if bytes.get(at + 1) == Some(&b'"') => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

enum Dollar {
    Parameter(usize),
    String(usize),
    Open,
    Symbol,
}

fn dollar(rest: &str) -> Dollar {
    let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 {
        return Dollar::Parameter(1 + digits);
    }
    let Some(tag_end) = rest[1..].find('$').map(|end| end + 2) else {
        return Dollar::Symbol;
    };
    let tag = &rest[..tag_end];
    if !tag[1..tag_end - 1].chars().all(in_name) {
        return Dollar::Symbol;
    }
    match rest[tag_end..].find(tag) {
        Some(end) => Dollar::String(tag_end + end + tag.len()),
        None => Dollar::Open,
    }
}
