//! Time for which the machine did not respond. Tests that check a promised duration with real processes add it to their
//! bound: on a busy machine a process may get neither processor nor disk for seconds.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two measurements.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest usual duration of a measurement: a wake-up, and the sync of a small file.
const USUAL: Duration = Duration::from_millis(50);

/// Thread that measures, until it is dropped, how late it wakes up and how long a small file takes to sync.
pub(crate) struct StallMeter {
    stalled_ms: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StallMeter {
    pub(crate) fn start() -> Self {
        let (stalled_ms, is_stopped) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (total, stop) = (stalled_ms.clone(), is_stopped.clone());
        let (started, ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut file = tempfile::tempfile().unwrap();
            started.send(()).unwrap();
            while !stop.load(Relaxed) {
                let began = Instant::now();
                std::thread::sleep(PAUSE);
                file.write_all(b"x").unwrap();
                file.sync_data().unwrap();
                let late = began.elapsed().saturating_sub(PAUSE + USUAL);
                total.fetch_add(u64::try_from(late.as_millis()).unwrap(), Relaxed);
            }
        });
        ready.recv().unwrap();
        Self { stalled_ms, is_stopped, thread: Some(thread) }
    }

    /// Time lost since the start.
    pub(crate) fn stalled(&self) -> Duration {
        Duration::from_millis(self.stalled_ms.load(Relaxed))
    }
}

impl Drop for StallMeter {
    fn drop(&mut self) {
        self.is_stopped.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
