//! One input at a time, and what it may take of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// More than this of memory for one input of some kilobytes is a finding.
const BYTES_MAX: usize = 64 << 20;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(bytes, layout) }
    }
}

/// Reads an input and looks at what that took.
pub fn bounded(read: fn(&[u8]), input: &[u8]) {
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    read(input);
    let took = MOST.load(Relaxed).saturating_sub(before);
    assert!(took <= BYTES_MAX, "{took} bytes for an input of {}", input.len());
}
