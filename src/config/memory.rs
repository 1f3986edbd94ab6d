//! How the memory for records and messages is shared out.
//!
//! What counts is what a process may hold at most: every projection has all partitions of its topics, every
//! queue is full, every batch too. Where the budget is large, each share ends at a size beyond which nothing
//! becomes faster.

use super::section::{Section, Sources};

const MIB: usize = 1 << 20;
const BUDGET_MIN: usize = 32 * MIB;
const BUDGET_DEFAULT: usize = 512 * MIB;
/// A larger batch, or a larger window of the relay, is no faster.
const BATCH_MAX: usize = 16 * MIB;
/// A batch is held as it came and as events, then bound to statements and written to a connection; a value that was
/// parsed is larger than its text.
const COPIES_OF_BATCH: usize = 8;
/// The relay reads one window while another is under way, and librdkafka has its own copy.
const COPIES_OF_WINDOW: usize = 8;

/// How much a process may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) budget: usize,
}

/// What of it is for what, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// What the client has fetched ahead, of all partitions of one projection.
    pub(crate) prefetch: usize,
    /// Records of one batch.
    pub(crate) batch: usize,
    /// Messages of one window of the relay.
    pub(crate) window: usize,
}

impl Memory {
    /// Half for what is fetched ahead, a quarter for batches, a quarter for the relay.
    pub(crate) fn shares(self, projections: usize, writers: usize) -> Shares {
        let projections = projections.max(1);
        let batches = self.budget / 4 / (projections * writers.max(1));
        Shares {
            prefetch: self.budget / 2 / projections,
            batch: (batches / COPIES_OF_BATCH).clamp(1, BATCH_MAX),
            window: (self.budget / 4 / COPIES_OF_WINDOW).clamp(1, BATCH_MAX),
        }
    }

    /// The same by name, in bytes, and for a person.
    pub(crate) fn shown(
        self,
        projections: usize,
        writers: usize,
    ) -> [(&'static str, usize, String); 3] {
        let shares = self.shares(projections, writers);
        let text = |bytes, what: &str| format!("{:>8}  {what}", size_text(bytes));
        let prefetch = text(
            shares.prefetch,
            "fetched ahead by each projection, shared by the partitions of its topics",
        );
        let batch = text(shares.batch, "records of one batch, for each writer");
        let window = text(shares.window, "messages of one window of the relay");
        [
            ("prefetch", shares.prefetch, prefetch),
            ("batch", shares.batch, batch),
            ("window", shares.window, window),
        ]
    }
}

pub(super) fn read(section: Section<'_>, sources: &mut Sources<'_>) -> Memory {
    let budget = section.size("budget", BUDGET_MIN, BUDGET_DEFAULT, sources);
    section.finish(&["budget"], sources);
    Memory { budget }
}

/// Bytes as they are written: `MB` and the others count in powers of 1024, as librdkafka and Postgres do.
pub(super) fn parse_size(text: &str) -> Option<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: usize = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "kB" | "KB" | "KiB" => 1 << 10,
        "MB" | "MiB" => MIB,
        "GB" | "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}

pub(super) fn size_text(bytes: usize) -> String {
    for (unit, name) in [(1 << 30, "GB"), (MIB, "MB"), (1 << 10, "kB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    match bytes {
        bytes if bytes >= MIB => format!("{:.1}MB", bytes as f64 / MIB as f64),
        bytes => format!("{}kB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in [("64kB", 65_536), ("512MB", 512 << 20), ("2 GiB", 2 << 30)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for wrong in [
            "",
            "512",
            "MB",
            "-1MB",
            "1.5GB",
            "5m",
            "99999999999999999999GB",
        ] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
        assert_eq!(size_text(512 << 20), "512MB");
        assert_eq!(size_text(1_600_000), "1.5MB");
    }

    #[test]
    fn the_usual_budget_holds_back_no_batch() {
        let usual = Memory {
            budget: BUDGET_DEFAULT,
        };
        let shares = usual.shares(1, 1);
        assert_eq!((shares.batch, shares.window), (BATCH_MAX, BATCH_MAX));
    }

    #[test]
    fn however_many_share_it_the_budget_is_kept() {
        for budget in [BUDGET_MIN, BUDGET_DEFAULT, 8 << 30] {
            for (projections, writers) in [(1, 1), (3, 4), (40, 64)] {
                let shares = Memory { budget }.shares(projections, writers);
                let held = shares.prefetch * projections
                    + shares.batch * COPIES_OF_BATCH * writers * projections
                    + shares.window * COPIES_OF_WINDOW;
                assert!(held <= budget, "{budget}: {shares:?}");
            }
        }
    }
}
