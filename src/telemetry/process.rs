//! What the process itself uses, under the names that Prometheus has for it.

use std::fs;

use super::table::{
    Metric, PROCESS_CPU_SECONDS_TOTAL, PROCESS_MAX_FDS, PROCESS_OPEN_FDS,
    PROCESS_RESIDENT_MEMORY_BYTES, PROCESS_THREADS,
};

const BYTES_PER_KIB: f64 = 1024.0;

/// Reads what `/proc` says. Where there is none, nothing is known.
pub(crate) fn process() -> Vec<(Metric, f64)> {
    let mut known = Vec::new();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    if let Some(kib) = kib("VmRSS:") {
        known.push((PROCESS_RESIDENT_MEMORY_BYTES, kib * BYTES_PER_KIB));
    }
    if let Some(threads) = kib("Threads:") {
        known.push((PROCESS_THREADS, threads));
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        known.push((PROCESS_OPEN_FDS, open.count() as f64));
    }
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if let Some(max) = files.current {
        known.push((PROCESS_MAX_FDS, max as f64));
    }
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
    known.push((PROCESS_CPU_SECONDS_TOTAL, seconds));
    known
}
