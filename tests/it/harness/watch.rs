//! Looks at the positions all the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Session, TestDb};

/// Not of what is being built: its batches do not wait for the disk, so a crash may take some back.
const POSITIONS: &str = "SELECT q.projection, q.generation, q.partition, q.next_offset
    FROM tidegate.position q JOIN tidegate.generation g ON g.projection = q.projection AND g.number = q.generation
    WHERE g.state <> 'building'";

/// A thread that reads every position again and again, and remembers the first one that went back.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Option<String>)>,
}

impl Watch {
    pub(crate) fn over(db: &TestDb) -> Self {
        let url = db.url();
        let mut session = Some(db.session());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut seen: BTreeMap<(String, i32, i32), i64> = BTreeMap::new();
            let (mut looks, mut wrong) = (0, None);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                let look = session.as_mut().map(|s| s.try_rows(POSITIONS));
                let Some(Ok(rows)) = look else {
                    // The server may be away for a while. What was seen before, it must show again after.
                    session = Session::try_open(&url).ok();
                    continue;
                };
                let rows: Vec<(String, i32, i32, i64)> = rows;
                for (projection, generation, partition, next) in rows {
                    let place = format!("{projection} {generation} [{partition}]");
                    let before = seen.insert((projection, generation, partition), next);
                    if before.is_some_and(|before| next < before) {
                        wrong.get_or_insert(format!("{place}: {before:?}, then {next}"));
                    }
                }
                looks += 1;
            }
            (looks, wrong)
        });
        Self { stop, thread }
    }

    /// Within a generation a position only ever grows (I2).
    #[track_caller]
    pub(crate) fn assert_only_grown(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (looks, wrong) = self.thread.join().unwrap();
        assert_eq!(wrong, None);
        assert!(looks > 10, "looked {looks} times only");
    }
}
