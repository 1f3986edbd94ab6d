//! What an SQL error means.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use sqlx::postgres::PgDatabaseError;

use crate::engine::Class;

/// A statement of Tidegate's own, or its connection, failed. Never the fault of a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// Its text is the whole story: a source would be told twice.
    #[error("{}", describe(.0))]
    Sql(sqlx::Error),
    /// BEGIN READ WRITE was refused: the database is a standby so far.
    #[error("{}", describe(.0))]
    Standby(sqlx::Error),
    #[error("{0} took longer than {1:?}; the connection is given up")]
    Deadline(&'static str, Duration),
    #[error("{0}")]
    Migrate(String),
    /// The database holds something that Tidegate did not write.
    #[error("{0}")]
    Unexpected(String),
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl Error {
    /// Transient or Halt: an error of ours is never a verdict on a record.
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Sql(error) => class_of_own_error(error),
            Self::Standby(_) | Self::Deadline(..) => Class::Transient,
            Self::Migrate(_) | Self::Unexpected(_) => Class::Halt,
        }
    }

    /// Whether a statement that was prepared is not there any more, or is there already: somebody else's session.
    pub(crate) fn is_of_a_pooler(&self) -> bool {
        match self {
            Self::Sql(error) => matches!(sqlstate(error).as_deref(), Some("26000" | "42P05")),
            _ => false,
        }
    }

    /// Whether the connection can be used again, after a ROLLBACK.
    pub(crate) fn connection_is_usable(&self) -> bool {
        match self {
            Self::Sql(error) => connection_is_usable(error),
            Self::Standby(_) | Self::Deadline(..) | Self::Migrate(_) => false,
            Self::Unexpected(_) => true,
        }
    }
}

/// The SQLSTATE, if Postgres itself raised the error.
pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}

/// Whether the connection can be used again, after a ROLLBACK.
pub(crate) fn connection_is_usable(error: &sqlx::Error) -> bool {
    match sqlstate(error).as_deref() {
        // The server has closed it, is closing it, or keeps a plan that no longer fits.
        Some(code) => {
            !(code.starts_with("08")
                || code.starts_with("57P")
                || matches!(
                    code,
                    "25P03" | "25P04" | "25006" | "26000" | "42P05" | "0A000"
                ))
        }
        // Rows, columns and types that are not what the caller thinks harm no connection.
        None => matches!(
            error,
            sqlx::Error::RowNotFound
                | sqlx::Error::TypeNotFound { .. }
                | sqlx::Error::ColumnIndexOutOfBounds { .. }
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::Encode(_)
        ),
    }
}

/// What an error of a handler's statement means. A constraint speaks about the row, so about the
/// record; a missing column speaks about us.
pub(crate) fn class_of_handler_error(error: &sqlx::Error) -> Class {
    let Some(code) = sqlstate(error) else {
        return match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Class::Transient,
            // Rows, columns and types that are not what the handler thinks: its code, not the record.
            _ => Class::Halt,
        };
    };
    // A row that fits no partition of a partitioned table: an operator's omission, without a constraint's name.
    if code == "23514" && database_error(error).is_some_and(|e| e.constraint().is_none()) {
        return Class::Halt;
    }
    match &*code {
        "25P01" | "25P02" | "25000" | "25001" => Class::Halt,
        "26000" | "42P05" => Class::Transient,
        "0A000" if describe(error).contains("cached plan") => Class::Transient,
        // A deadlock or serialization failure is of class 40; 55P03 is a lock that was waited for too long.
        _ => match code.get(..2).unwrap_or_default() {
            "22" | "23" | "54" | "P0" => Class::Terminal,
            "08" | "25" | "40" | "53" | "55" | "57" | "58" => Class::Transient,
            _ => Class::Halt,
        },
    }
}

/// What an error of a statement of ours means: never Terminal.
pub(crate) fn class_of_own_error(error: &sqlx::Error) -> Class {
    match class_of_handler_error(error) {
        Class::Terminal => Class::Halt,
        class => class,
    }
}

fn database_error(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error
        .as_database_error()?
        .try_downcast_ref::<PgDatabaseError>()
}

/// The error as a person needs it: message, SQLSTATE, hint. Without `DETAIL`, which quotes rows.
pub(crate) fn describe(error: &sqlx::Error) -> String {
    let Some(error) = database_error(error) else {
        return match error {
            sqlx::Error::Io(error) => not_connected(&error.to_string()),
            sqlx::Error::Tls(error) => not_connected(&error.to_string()),
            other => other.to_string(),
        };
    };
    let mut text = format!("{} (SQLSTATE {})", error.message(), error.code());
    if let Some(hint) = error.hint() {
        let _ = write!(text, "; hint: {hint}");
    }
    text
}

/// What the connection says, and what a person can do about it.
fn not_connected(error: &str) -> String {
    let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
    let cure = if has(&["UnknownIssuer"]) {
        "; nobody whom this process trusts has signed its certificate: name the file of its authority as `sslrootcert` in `postgres.url`"
    } else if has(&["not valid for name", "NotValidForName"]) {
        "; its certificate is for another name: write that one in `postgres.url`"
    } else if has(&["expired", "Expired"]) {
        "; its certificate has to be renewed"
    } else if has(&["CertificateRequired", "certificate required"]) {
        "; it wants a certificate of this process: name its files as `sslcert` and `sslkey` in `postgres.url`"
    } else {
        ""
    };
    format!("the connection to Postgres failed: {error}{cure}")
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;
    use std::fmt;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// Only the code matters here.
    #[derive(Debug)]
    struct Coded(&'static str);

    impl fmt::Display for Coded {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Coded {}

    impl DatabaseError for Coded {
        fn message(&self) -> &str {
            self.0
        }
        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }
        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[track_caller]
    fn check(codes: &[&'static str], handler: Class, own: Class) {
        for &code in codes {
            let error = sqlx::Error::Database(Box::new(Coded(code)));
            assert_eq!(class_of_handler_error(&error), handler, "{code}");
            assert_eq!(class_of_own_error(&error), own, "{code}");
        }
    }

    #[test]
    fn what_speaks_about_the_record_is_terminal_only_in_a_handlers_statement() {
        check(
            &["22003", "22P02", "23505", "23514", "54000", "P0001"],
            Class::Terminal,
            Class::Halt,
        );
    }

    #[test]
    fn an_outage_is_transient() {
        check(
            &[
                "08006", "40001", "40P01", "53300", "55P03", "57P01", "57014", "25006", "25P03",
                "26000", "42P05",
            ],
            Class::Transient,
            Class::Transient,
        );
    }

    #[test]
    fn a_bad_deployment_halts() {
        check(
            &[
                "42703", "42P01", "42501", "3F000", "28000", "0A000", "25P02", "XX000",
            ],
            Class::Halt,
            Class::Halt,
        );
    }
}
