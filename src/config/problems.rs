//! What is wrong with a configuration, all of it, each with its place and a cure.

use std::fmt;

use super::section::File;

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
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) place: Place,
    pub(crate) what: String,
    pub(crate) cure: String,
    /// The line it is in, shown with a caret.
    excerpt: Option<String>,
}

/// All problems of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    lines: Vec<String>,
}

impl Problems {
    pub(super) fn new(file: &File<'_>) -> Self {
        Self {
            list: Vec::new(),
            lines: file.text.lines().map(str::to_owned).collect(),
        }
    }

    /// Problems found later, in a file that was read before.
    pub(crate) fn of(text: &str) -> Self {
        Self {
            list: Vec::new(),
            lines: text.lines().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn add(&mut self, place: Place, what: String, cure: impl Into<String>) {
        let excerpt = match &place {
            Place::Line { line, .. } => self.lines.get(line - 1).cloned(),
            Place::Name(_) => None,
        };
        self.list.push(Problem {
            place,
            what,
            cure: cure.into(),
            excerpt,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// As a compiler shows errors: place and message, the line, a caret, the cure.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list: Vec<&Problem> = self.list.iter().collect();
        list.sort_by_key(|problem| match &problem.place {
            Place::Line { line, column, .. } => (*line, *column),
            Place::Name(_) => (usize::MAX, 0),
        });
        for (index, problem) in list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "error: {}", problem.what)?;
            writeln!(f, "  --> {}", problem.place)?;
            if let (Place::Line { line, column, .. }, Some(excerpt)) =
                (&problem.place, &problem.excerpt)
            {
                let number = line.to_string();
                let margin = " ".repeat(number.len());
                writeln!(f, "{margin} |")?;
                writeln!(f, "{number} | {excerpt}")?;
                // Tabs stay tabs, so that the caret stands below its character.
                let blank: String = excerpt
                    .chars()
                    .take(column - 1)
                    .map(|c| if c == '\t' { '\t' } else { ' ' })
                    .collect();
                writeln!(f, "{margin} | {blank}^")?;
            }
            if !problem.cure.is_empty() {
                writeln!(f, "  help: {}", problem.cure)?;
            }
        }
        Ok(())
    }
}
