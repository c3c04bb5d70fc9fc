//! Locks on keys across processes, which end with their process.
//!
//! A key belongs to one of 4,096 stripes, each an empty file that is locked with `flock` while the key is
//! compared and replaced. Two keys of one stripe only wait for each other; no thread ever holds two stripes, so there
//! are no deadlocks. The files are never removed: a lock on a removed file excludes no other process.
//!
//! Threads of one process wait in order: polling with `flock` is not fair, and on a slow disk a thread could lose to
//! the others until it times out. Only the first of them polls the lock; between processes there is no order.
//!
//! A process can be stopped while it holds a lock. Waiting threads time out before their callers do, so that no write
//! or removal happens long after it was reported as failed.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::temps::Temps;
use crate::host::Instant;

/// Number of stripes: enough that 64 concurrent writers rarely share one, few enough to list quickly.
const STRIPES: u32 = 4_096;

/// Maximum number of reads of the kernel's table of locks. It is read in parts, and a part can miss an entry if entries
/// before it are removed meanwhile.
const LOCK_TABLE_READS: u32 = 20;

/// Timeout for a lock: half of the timeout for an answer.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Minimum pause between two polls of a held lock: a durable write takes a few hundred microseconds.
const POLL_MIN: Duration = Duration::from_micros(50);
const POLL_MAX: Duration = Duration::from_millis(1);

pub(super) struct Locks {
    directory: PathBuf,
    /// In a folder that was opened read-only they create no files, so that every lock is refused.
    temps: Arc<Temps>,
    queues: Arc<Queues>,
}

/// Held lock, released when this is dropped or the process ends.
pub(super) struct Lock {
    // Dropped before the place in the queue, so that the lock is free for the next thread.
    _file: File,
    _place: Place,
}

/// Threads of this process that hold or wait for a stripe, in order of arrival.
#[derive(Default)]
struct Queues {
    by_stripe: Mutex<HashMap<u32, VecDeque<Arc<()>>>>,
    changed: Condvar,
}

/// Place in the queue of a stripe, given up when this is dropped.
struct Place {
    stripe: u32,
    ticket: Arc<()>,
    queues: Arc<Queues>,
}

impl Place {
    fn join(queues: &Arc<Queues>, stripe: u32) -> Self {
        let ticket = Arc::new(());
        queues.lock().entry(stripe).or_default().push_back(ticket.clone());
        Self { stripe, ticket, queues: queues.clone() }
    }

    fn is_first(&self, queues: &HashMap<u32, VecDeque<Arc<()>>>) -> bool {
        queues
            .get(&self.stripe)
            .and_then(VecDeque::front)
            .is_some_and(|first| Arc::ptr_eq(first, &self.ticket))
    }

    /// Waits until the thread is first, for at most `pause`; true if it is.
    fn wait(&self, pause: Duration) -> bool {
        let waiting = self
            .queues
            .changed
            .wait_timeout_while(self.queues.lock(), pause, |queues| !self.is_first(queues));
        !waiting.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(&self.stripe) {
            queue.retain(|ticket| !Arc::ptr_eq(ticket, &self.ticket));
            if queue.is_empty() {
                queues.remove(&self.stripe);
            }
        }
        drop(queues);
        self.queues.changed.notify_all();
    }
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, VecDeque<Arc<()>>>> {
        self.by_stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    pub(super) fn new(own: &Path, temps: Arc<Temps>) -> Self {
        Self { directory: own.join("locks"), temps, queues: Arc::default() }
    }

    /// Waits for the lock of a key, with a timeout by the clock `now`.
    pub(super) fn hold(&self, key: &str, now: impl Fn() -> Instant) -> io::Result<Lock> {
        let began = now();
        let hash = blake3::hash(key.as_bytes());
        let number =
            u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("a hash has 32 bytes")) % STRIPES;
        // Each call opens the file again, so that the lock also excludes other threads of this process.
        let file = self.temps.append(&self.directory.join(format!("{number:03x}")))?;
        let place = Place::join(&self.queues, number);
        wait_in(Some(&place), &file, &format!("`{key}`"), began, now)?;
        Ok(Lock { _file: file, _place: place })
    }
}

/// Waits for the lock on a file, with a timeout by the clock `now`.
pub(super) fn wait_for(file: &File, what: &str, began: Instant, now: impl Fn() -> Instant) -> io::Result<()> {
    wait_in(None, file, what, began, now)
}

/// Waits for the lock on a file, after the threads that came before. Pauses are counted in addition to the clock:
/// they are longer than intended on a busy machine, and a clock that only a test moves may stand still.
fn wait_in(
    place: Option<&Place>,
    file: &File,
    what: &str,
    began: Instant,
    now: impl Fn() -> Instant,
) -> io::Result<()> {
    let (mut paused, mut pause) = (Duration::ZERO, POLL_MIN);
    let mut is_first = place.is_none_or(|place| place.wait(Duration::ZERO));
    loop {
        let locked = if is_first { file.try_lock() } else { Err(TryLockError::WouldBlock) };
        let is_late = paused.max(now().since(began)) > WAIT_MAX;
        match locked {
            Err(TryLockError::Error(error)) => return Err(error),
            // A lock that comes too late is released: the caller may have timed out.
            Ok(()) if is_late => {
                file.unlock()?;
                return Err(lock_timed_out(what, None));
            }
            Err(TryLockError::WouldBlock) if is_late => return Err(lock_timed_out(what, holder_of(file))),
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if !is_first => {
                is_first = place.is_none_or(|place| place.wait(POLL_MAX));
                if !is_first {
                    paused += POLL_MAX;
                }
            }
            Err(TryLockError::WouldBlock) => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a thread that may block, waiting for a process"
                )]
                std::thread::sleep(pause);
                paused += pause;
                pause = (pause * 2).min(POLL_MAX);
            }
        }
    }
}

/// Error of a lock that timed out. Nothing was written, and the request can be retried.
fn lock_timed_out(what: &str, holder: Option<String>) -> io::Error {
    let holder = holder.unwrap_or_else(|| "another process".to_owned());
    let secs = WAIT_MAX.as_secs();
    io::Error::new(
        ErrorKind::WouldBlock,
        format!("{what} has been locked by {holder} for more than {secs} s"),
    )
}

/// Process that holds a lock on a file, if the kernel shows it. Identified by inode only: the device in `/proc/locks`
/// differs from that of `stat` on btrfs and overlayfs, and this is for a message.
fn holder_of(file: &File) -> Option<String> {
    let inode = file.metadata().ok()?.ino().to_string();
    let find = || {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| holder_in(line, &inode))
    };
    let pid = (0..LOCK_TABLE_READS).find_map(|_| find())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// Parses the holder from a line such as `6: FLOCK  ADVISORY  WRITE 1024 fe:00:10241074 0 EOF`, if it is about this
/// inode. Waiting processes have an arrow in place of the kind; a process of another container has the number 0.
fn holder_in(line: &str, inode: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    words.next().filter(|kind| *kind == "FLOCK")?;
    let pid = words.nth(2)?.parse().ok().filter(|pid| *pid != 0);
    words.next()?.rsplit(':').next().filter(|number| *number == inode).and(pid)
}

#[cfg(test)]
mod tests {
    use super::super::FolderAccess;
    use super::*;
    use crate::testing::FakeHost;
    use std::cell::Cell;
    use std::sync::mpsc;

    fn locks(own: &Path) -> Locks {
        let temps = Temps::open(own, FolderAccess::default(), &FakeHost::new()).unwrap();
        fs::create_dir(own.join("locks")).unwrap();
        Locks::new(own, Arc::new(temps))
    }

    /// Clock that advances by `step` with every reading, and counts its readings.
    fn clock(step: Duration, times: &Cell<i64>) -> impl Fn() -> Instant {
        move || {
            times.set(times.get() + 1);
            let passed = i64::try_from(step.as_nanos()).unwrap() * times.get();
            Instant { boot_ns: passed, wall_ns: passed }
        }
    }

    #[test]
    fn a_lock_is_waited_for_by_the_clock_and_not_by_the_number_of_pauses() {
        let folder = tempfile::tempdir().unwrap();
        let (locks, times) = (locks(folder.path()), Cell::new(0));
        let _held = locks.hold("k", clock(Duration::ZERO, &times)).unwrap();
        times.set(0);
        let refused = locks.hold("k", clock(Duration::from_secs(1), &times)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        assert_eq!(times.get(), 7, "times out after more than five seconds");
    }

    #[test]
    fn a_lock_that_comes_too_late_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let (locks, times) = (locks(folder.path()), Cell::new(0));
        let refused = locks.hold("k", clock(Duration::from_secs(6), &times)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        locks.hold("k", clock(Duration::ZERO, &times)).expect("the lock is free");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the threads are joined")]
    fn threads_of_a_process_get_a_lock_in_the_order_in_which_they_wait() {
        const WAITERS: usize = 16;
        let folder = tempfile::tempdir().unwrap();
        let locks = Arc::new(locks(folder.path()));
        let still = || Instant { boot_ns: 0, wall_ns: 0 };
        let held = locks.hold("k", still).unwrap();
        let ((looked, clock_reads), (got, order)) = (mpsc::channel(), mpsc::channel());
        let waiters: Vec<_> = (0..WAITERS)
            .map(|number| {
                let (locks, looked, got) = (locks.clone(), looked.clone(), got.clone());
                let waiter = std::thread::spawn(move || {
                    let clock = || {
                        let _ = looked.send(number);
                        still()
                    };
                    let held = locks.hold("k", clock).unwrap();
                    got.send(number).unwrap();
                    drop(held);
                });
                // It reads the clock when it begins, and again when it has found the lock held.
                assert_eq!(clock_reads.iter().filter(|looker| *looker == number).take(2).count(), 2);
                waiter
            })
            .collect();
        drop(held);
        let order: Vec<_> = order.iter().take(WAITERS).collect();
        assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
        for waiter in waiters {
            waiter.join().unwrap();
        }
    }

    #[test]
    fn the_holder_of_a_lock_is_read_from_the_kernels_list() {
        let held = "6: FLOCK  ADVISORY  WRITE 1024 fe:00:10241074 0 EOF";
        assert_eq!(holder_in(held, "10241074"), Some(1024));
        assert_eq!(holder_in(held, "1074"), None);
        for other in [
            "6: -> FLOCK  ADVISORY  WRITE 1024 fe:00:10241074 0 EOF",
            "6: POSIX  ADVISORY  WRITE 1024 fe:00:10241074 0 EOF",
            "6: FLOCK  ADVISORY  WRITE 0 fe:00:10241074 0 EOF",
            "6: FLOCK",
            "",
        ] {
            assert_eq!(holder_in(other, "10241074"), None, "{other}");
        }
    }
}
