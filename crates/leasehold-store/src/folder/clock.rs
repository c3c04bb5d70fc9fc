//! The time of a folder.
//!
//! On one host every process reads the same boot clock; what they must agree on is the offset from it to the
//! folder's time. The first process of each boot writes that offset into the folder, from the wall clock as it
//! is at that moment, and nobody looks at the wall clock again until the next boot. A file whose stamp follows
//! the folder's time keeps it from going back across boots: small machines without a battery start in 1970.
//!
//! On a mount that several hosts share, the boot clocks have nothing in common. There the server's stamps on
//! the files that are written play the part of an answer's date.

use leasehold_core::StoreTime;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use super::FolderTime;
use crate::clock::Clock;
use crate::host::{Host, HostExt, Instant};

/// How often the high-water mark follows the time. It is all that a reboot with a broken wall clock can cost.
const HIGH_WATER_NS: i64 = 10_000_000_000;

/// How wide "now" may get on a mount before it is asked again.
const VAGUE: Duration = Duration::from_secs(5);

const SERVER_TIME: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};

pub(super) struct FolderClock {
    clock: Clock,
    host: Arc<dyn Host>,
    kind: Kind,
}

enum Kind {
    Host { offset_ns: i64, high: PathBuf, marked_ns: AtomicI64 },
    Mount { directory: PathBuf },
}

impl FolderClock {
    pub(super) fn open(own: &Path, time: Option<FolderTime>, host: &Arc<dyn Host>) -> io::Result<Self> {
        let directory = own.join("clock");
        fs::create_dir_all(&directory)?;
        match time.map_or_else(|| time_for(&directory), Ok)? {
            FolderTime::Host => {
                let offset_ns = offset_of_this_boot(&directory, &**host)?;
                let reader = host.clone();
                let clock = Clock::exact(move || millis(reader.instant().boot_ns + offset_ns));
                let kind =
                    Kind::Host { offset_ns, high: directory.join("high"), marked_ns: AtomicI64::new(0) };
                Ok(Self { clock, host: host.clone(), kind })
            }
            FolderTime::Mount => {
                let kind = Kind::Mount { directory };
                let opened = Self { clock: Clock::dated(host.clone()), host: host.clone(), kind };
                opened.make_sure()?;
                Ok(opened)
            }
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn instant(&self) -> Instant {
        self.host.instant()
    }

    /// Stamps a file with the folder's time; on a mount the server does it.
    pub(super) fn stamp(&self, file: &File) -> io::Result<()> {
        let Kind::Host { offset_ns, high, marked_ns } = &self.kind else {
            return Ok(rustix::fs::futimens(file, &SERVER_TIME)?);
        };
        let now_ns = self.host.instant().boot_ns + offset_ns;
        if now_ns - marked_ns.load(Relaxed) > HIGH_WATER_NS {
            marked_ns.store(now_ns, Relaxed);
            File::options().create(true).append(true).open(high)?.set_modified(system_time(now_ns))?;
        }
        file.set_modified(system_time(now_ns))
    }

    /// Learns from the server's stamp on a file that was written since `sent`.
    pub(super) fn learn(&self, file: &File, sent: Instant) -> io::Result<()> {
        if let Kind::Mount { .. } = self.kind {
            let date_secs = nanos(file.metadata()?.modified()?).div_euclid(1_000_000_000);
            self.clock.observe(date_secs, sent, self.host.instant());
        }
        Ok(())
    }

    /// A mount tells its time only to those who write. One throw-away file at the start, and another when all that
    /// was learnt has become void or vague: whoever only reads could otherwise wait for ever.
    pub(super) fn make_sure(&self) -> io::Result<()> {
        let Kind::Mount { directory } = &self.kind else { return Ok(()) };
        let width = self.clock.now().and_then(|now| now.width());
        if width.is_some_and(|width| width < VAGUE) {
            return Ok(());
        }
        let path = directory.join(format!("probe-{:032x}", self.host.random_bits()));
        let sent = self.host.instant();
        let learnt = File::create_new(&path).and_then(|mut file| {
            io::Write::write_all(&mut file, b"?")?;
            file.sync_all()?;
            self.learn(&file, sent)
        });
        fs::remove_file(&path)?;
        learnt
    }
}

/// The time a file was stamped with, as the folder's time.
pub(super) fn stamped(metadata: &fs::Metadata) -> StoreTime {
    metadata.modified().map_or(StoreTime::from_millis(0), |time| millis(nanos(time)))
}

/// File systems of other hosts (and those that may be, such as FUSE) keep their own time.
fn time_for(directory: &Path) -> io::Result<FolderTime> {
    const NFS: u32 = 0x6969;
    const SMB: u32 = 0x517b;
    const CIFS: u32 = 0xff53_4d42;
    const SMB2: u32 = 0xfe53_4d42;
    const FUSE: u32 = 0x6573_5546;
    const CEPH: u32 = 0x00c3_6400;
    const LUSTRE: u32 = 0x0bd0_0bd0;
    const GPFS: u32 = 0x4750_4653;
    const NINE_P: u32 = 0x0102_1997;
    const AFS: u32 = 0x5346_414f;
    let kind = rustix::fs::statfs(directory)?.f_type;
    let is_mount = [NFS, SMB, CIFS, SMB2, FUSE, CEPH, LUSTRE, GPFS, NINE_P, AFS]
        .into_iter()
        .any(|known| i64::from(known) == kind & 0xffff_ffff);
    Ok(if is_mount { FolderTime::Mount } else { FolderTime::Host })
}

/// Folder time minus boot clock for this boot; the first process of a boot decides.
fn offset_of_this_boot(directory: &Path, host: &dyn Host) -> io::Result<i64> {
    let lock = File::options().create(true).append(true).open(directory.join("lock"))?;
    lock.lock()?;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let path = directory.join(format!("boot-{}", boot_id.trim()));
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| corrupt(&path)),
        Err(error) if error.kind() == ErrorKind::NotFound => decide_offset(directory, &path, host),
        // Not even text.
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(corrupt(&path)),
        Err(error) => Err(error),
    }
}

fn decide_offset(directory: &Path, path: &Path, host: &dyn Host) -> io::Result<i64> {
    let high_ns = fs::metadata(directory.join("high")).and_then(|high| high.modified()).map_or(0, nanos);
    let instant = host.instant();
    let offset_ns = instant.wall_ns.max(high_ns + HIGH_WATER_NS) - instant.boot_ns;
    let new = path.with_extension("new");
    fs::write(&new, offset_ns.to_string())?;
    File::open(&new)?.sync_all()?;
    fs::rename(&new, path)?;
    File::open(directory)?.sync_all()?;
    for entry in fs::read_dir(directory)? {
        let old = entry?.path();
        if old != path && old.file_name().is_some_and(|name| name.to_string_lossy().starts_with("boot-")) {
            fs::remove_file(old)?;
        }
    }
    Ok(offset_ns)
}

fn corrupt(path: &Path) -> io::Error {
    let message =
        format!("{} does not hold a number; remove it while nothing uses the folder", path.display());
    io::Error::new(ErrorKind::InvalidInput, message)
}

fn millis(ns: i64) -> StoreTime {
    StoreTime::from_millis(ns.div_euclid(1_000_000))
}

fn nanos(time: SystemTime) -> i64 {
    let clamp = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    time.duration_since(SystemTime::UNIX_EPOCH).map_or_else(|before| -clamp(before.duration()), clamp)
}

fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
}
