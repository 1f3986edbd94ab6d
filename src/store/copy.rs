//! Rows as `COPY .. WITH (FORMAT binary)` takes them: a third cheaper for Postgres than arrays, and sent while
//! the later ones are still being written down.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::postgres::PgCopyIn;
use uuid::Uuid;

use super::Error;

/// Signature, no flags, no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// No fields: the end.
const TRAILER: [u8; 2] = (-1i16).to_be_bytes();
/// Bytes that are sent together.
const CHUNK: usize = 1 << 17;
/// 2000-01-01, Postgres' epoch.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Object ids of Postgres' built-in types.
const TEXT: i32 = 25;
const BYTEA: i32 = 17;

/// A COPY that has begun. Its last word must be [`finish`](Self::finish).
pub(crate) struct Copy<'c> {
    copy: PgCopyIn<&'c mut PgConnection>,
    bytes: Vec<u8>,
}

impl<'c> Copy<'c> {
    pub(crate) async fn begin(
        connection: &'c mut PgConnection,
        statement: &str,
    ) -> Result<Self, Error> {
        Ok(Self {
            copy: connection.copy_in_raw(statement).await?,
            bytes: HEADER.to_vec(),
        })
    }

    /// Begins a row; all of its fields follow.
    pub(crate) fn row(&mut self, fields: i16) -> Row<'_> {
        self.bytes.extend(fields.to_be_bytes());
        Row {
            bytes: &mut self.bytes,
        }
    }

    /// Sends the rows so far, if there are enough of them.
    pub(crate) async fn send_if_full(&mut self) -> Result<(), Error> {
        if self.bytes.len() >= CHUNK {
            self.copy.send(&*self.bytes).await?;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Returns how many rows were stored.
    pub(crate) async fn finish(mut self) -> Result<u64, Error> {
        self.bytes.extend(TRAILER);
        self.copy.send(&*self.bytes).await?;
        Ok(self.copy.finish().await?)
    }
}

/// The fields of a row, in the order of the statement's columns.
pub(crate) struct Row<'b> {
    bytes: &'b mut Vec<u8>,
}

impl Row<'_> {
    pub(crate) fn bytes(&mut self, value: Option<&[u8]>) -> Result<(), Error> {
        match value {
            Some(value) => {
                self.number(length(value.len())?);
                self.bytes.extend_from_slice(value);
            }
            None => self.number(-1),
        }
        Ok(())
    }

    /// Fields as they are sent, each with its length before it.
    pub(crate) fn encoded(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }

    pub(crate) fn text(&mut self, value: &str) -> Result<(), Error> {
        self.bytes(Some(value.as_bytes()))
    }

    pub(crate) fn bigint(&mut self, value: i64) -> Result<(), Error> {
        self.bytes(Some(&value.to_be_bytes()))
    }

    pub(crate) fn integer(&mut self, value: Option<i32>) -> Result<(), Error> {
        self.bytes(value.map(i32::to_be_bytes).as_ref().map(|value| &value[..]))
    }

    pub(crate) fn uuid(&mut self, value: Uuid) -> Result<(), Error> {
        self.bytes(Some(value.as_bytes()))
    }

    pub(crate) fn time(&mut self, value: Option<DateTime<Utc>>) -> Result<(), Error> {
        let micros = value.map(|value| (value.timestamp_micros() - EPOCH_MICROS).to_be_bytes());
        self.bytes(micros.as_ref().map(|micros| &micros[..]))
    }

    pub(crate) fn texts<'t>(
        &mut self,
        values: impl ExactSizeIterator<Item = &'t str>,
    ) -> Result<(), Error> {
        self.array(TEXT, values.map(|value| Some(value.as_bytes())))
    }

    pub(crate) fn byteas<'t>(
        &mut self,
        values: impl ExactSizeIterator<Item = Option<&'t [u8]>>,
    ) -> Result<(), Error> {
        self.array(BYTEA, values)
    }

    fn array<'t>(
        &mut self,
        of: i32,
        values: impl ExactSizeIterator<Item = Option<&'t [u8]>>,
    ) -> Result<(), Error> {
        let start = self.bytes.len();
        self.number(0);
        let count = length(values.len())?;
        self.number(i32::from(count > 0)); // dimensions
        self.number(1); // there may be nulls
        self.number(of);
        if count > 0 {
            self.number(count);
            self.number(1); // index of the first
        }
        for value in values {
            self.bytes(value)?;
        }
        let bytes = length(self.bytes.len() - start - size_of::<i32>())?.to_be_bytes();
        self.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    fn number(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }
}

fn length(of: usize) -> Result<i32, Error> {
    i32::try_from(of).map_err(|_| Error::Unexpected(format!("a field of {of} bytes")))
}
