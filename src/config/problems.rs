//! What is wrong with a configuration, all of it, each with its place and a cure.

use std::fmt;

use crate::engine::redact::line_without_secrets;

/// Where a problem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file, an environment variable.
    Name(String),
    /// A line and a column of the file, both from 1.
    Line {
        file: String,
        line: usize,
        column: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Line { file, line, column } => write!(f, "{file}:{line}:{column}"),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    place: Place,
    what: String,
    cure: String,
}

/// All problems of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    /// The files that places may be in, by name, in the order in which they are reported.
    files: Vec<(String, String)>,
}

impl Problems {
    /// A file whose lines are shown where something is wrong with them.
    pub(crate) fn add_file(&mut self, name: &str, text: &str) {
        if !self.files.iter().any(|(known, _)| known == name) {
            self.files.push((name.to_owned(), text.to_owned()));
        }
    }

    pub(crate) fn add(&mut self, place: Place, what: String, cure: impl Into<String>) {
        let problem = Problem {
            place,
            what,
            cure: cure.into(),
        };
        if !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    /// A reason that ends with its cure, after a semicolon.
    pub(crate) fn add_reason(&mut self, place: Place, reason: &str) {
        let (what, cure) = reason.split_once("; ").unwrap_or((reason, ""));
        self.add(place, what.to_owned(), cure);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// By file, then by line; what is wrong with a file as a whole comes first, and what is in none
    /// of the files last.
    fn order(&self, place: &Place) -> (usize, usize, usize) {
        let file = |name: &str| {
            let file = self.files.iter().position(|(known, _)| known == name);
            file.unwrap_or(usize::MAX)
        };
        match place {
            Place::Line {
                file: name,
                line,
                column,
            } => (file(name), *line, *column),
            Place::Name(name) => (file(name), 0, 0),
        }
    }

    fn excerpt(&self, place: &Place) -> Option<(usize, usize, &str)> {
        let Place::Line { file, line, column } = place else {
            return None;
        };
        let (_, text) = self.files.iter().find(|(name, _)| name == file)?;
        Some((*line, *column, text.lines().nth(line - 1)?))
    }
}

/// As a compiler shows errors: place and message, the line, a caret, the cure.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list: Vec<&Problem> = self.list.iter().collect();
        list.sort_by_key(|problem| self.order(&problem.place));
        for (index, problem) in list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "error: {}", problem.what)?;
            let excerpt = self.excerpt(&problem.place);
            let number = excerpt.map_or(String::new(), |(line, ..)| line.to_string());
            let margin = " ".repeat(number.len().max(1));
            writeln!(f, "{margin}--> {}", problem.place)?;
            if let Some((_, column, line)) = excerpt {
                // Tabs stay tabs, so that the carets stand below their characters.
                let before = line.chars().take(column - 1);
                let blank: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
                let at: String = line.chars().skip(column - 1).collect();
                writeln!(f, "{margin} |")?;
                writeln!(f, "{number} | {}", line_without_secrets(line))?;
                writeln!(f, "{margin} | {blank}{}", "^".repeat(width(&at)))?;
            }
            if !problem.cure.is_empty() {
                writeln!(f, "{margin} = help: {}", problem.cure)?;
            }
        }
        Ok(())
    }
}

/// How many characters the thing has that a line goes on with: a word, or a short string and its quotes.
fn width(at: &str) -> usize {
    const STRING_MAX: usize = 60;
    let mut chars = at.chars();
    let in_word = |c: &char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    match chars.next() {
        Some(quote @ ('"' | '\'')) => match chars.position(|c| c == quote) {
            // Three quotes begin a text of several lines.
            Some(0) => at.chars().take_while(|c| *c == quote).count(),
            Some(end) if end <= STRING_MAX => end + 2,
            _ => 1,
        },
        Some(first) if in_word(&first) => 1 + chars.take_while(in_word).count(),
        _ => 1,
    }
}
