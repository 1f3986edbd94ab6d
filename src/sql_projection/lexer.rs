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
    /// A `*`, or a function that takes whole rows: every column is needed.
    pub(super) names_all: bool,
    /// `UPDATE .. FROM events`, not grouped.
    pub(super) updates_from_events: bool,
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

/// Functions that look at rows as a whole, and joins that look at all names.
const WHOLE_ROW: [&str; 9] = [
    "to_json",
    "to_jsonb",
    "row_to_json",
    "json_agg",
    "jsonb_agg",
    "array_agg",
    "row",
    "natural",
    "table",
];

impl Lexed {
    /// # Errors
    /// What cannot be wrapped, and where, in characters of the text.
    pub(super) fn new(sql: &str) -> Result<Self, (String, usize)> {
        let chars = |byte: usize| sql[..byte].chars().count();
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
            let why = "one statement per entry; write the next one as an entry of its own";
            return Err((why.to_owned(), chars(semicolon.start)));
        }
        let word = |index: usize, word: &str| {
            tokens
                .get(index)
                .is_some_and(|t| t.kind == Kind::Word(word.to_owned()))
        };
        let (with, cut) = match (word(0, "with"), word(1, "recursive")) {
            (true, true) => (With::Recursive, tokens[1].end),
            (true, false) => (With::Plain, tokens[0].end),
            _ => (With::None, first.start),
        };
        for (index, token) in tokens.iter().enumerate() {
            let ours = matches!(&token.kind, Kind::Word(w) if w == "events" || w == "latest");
            let defined = ours && word(index + 1, "as") && symbol(&tokens, index + 2) == Some('(');
            let target =
                ours && index > 0 && (word(index - 1, "into") || word(index - 1, "update"));
            if defined || target {
                let why = "`events` and `latest` are tidegate's; give this one another name";
                return Err((why.to_owned(), chars(token.start)));
            }
        }
        let words: BTreeSet<String> = tokens
            .iter()
            .filter_map(|t| match &t.kind {
                Kind::Word(word) => Some(word.clone()),
                _ => None,
            })
            .collect();
        let names_all = WHOLE_ROW.iter().any(|name| words.contains(*name))
            || tokens
                .iter()
                .enumerate()
                .any(|(i, t)| t.kind == Kind::Symbol('*') && is_star(&tokens, i));
        Ok(Self {
            names_all,
            updates_from_events: updates_from_events(&tokens),
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

fn symbol(tokens: &[Token], index: usize) -> Option<char> {
    match tokens.get(index)?.kind {
        Kind::Symbol(symbol) => Some(symbol),
        _ => None,
    }
}

/// A `*` that means all columns, not a product and not `count(*)`.
fn is_star(tokens: &[Token], index: usize) -> bool {
    let Some(before) = index.checked_sub(1).map(|i| &tokens[i].kind) else {
        return false;
    };
    match before {
        Kind::Symbol(',' | '.') => true,
        Kind::Word(word) => matches!(&**word, "select" | "distinct" | "all" | "returning"),
        _ => false,
    }
}

/// Whether an UPDATE joins its rows with `events` directly.
fn updates_from_events(tokens: &[Token]) -> bool {
    let mut updating: Option<usize> = None;
    let mut listing = false;
    for token in tokens {
        match &token.kind {
            Kind::Word(word) if word == "update" => updating = Some(token.depth),
            Kind::Word(word) if Some(token.depth) == updating => match &**word {
                "from" | "join" => listing = true,
                "where" | "on" | "returning" | "set" => listing = false,
                "events" if listing => return true,
                // An upsert's DO UPDATE, or a locking clause, has no FROM of its own.
                "insert" | "select" | "delete" | "merge" => updating = None,
                _ => {}
            },
            _ => {}
        }
    }
    false
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
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'/' if rest.starts_with("/*") => {
                at += comment(rest).ok_or_else(|| ("a comment does not end".to_owned(), start))?;
                continue;
            }
            b'\'' => {
                // A backslash escapes only in E'..'.
                let escapes = matches!(sql[..at].chars().next_back(), Some('e' | 'E'))
                    && !sql[..at - 1].ends_with(|c: char| c.is_alphanumeric() || c == '_');
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
                let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
                let length = word.unwrap_or(rest.len());
                if length > 0 {
                    at += length;
                    Kind::Word(rest[..length].to_lowercase())
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
    if !tag[1..tag_end - 1]
        .chars()
        .all(|c| c.is_alphanumeric() || c == '_')
    {
        return Dollar::Symbol;
    }
    match rest[tag_end..].find(tag) {
        Some(end) => Dollar::String(tag_end + end + tag.len()),
        None => Dollar::Open,
    }
}
