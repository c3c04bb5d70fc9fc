//! Clock of a folder.
//!
//! On one host every process reads the same boot clock, and all must agree on its offset to the folder's time. The
//! first process of each boot writes that offset into the folder, from the current wall clock, and no process reads the
//! wall clock again until the next boot. A file whose modification time follows the folder's time (the high-water mark)
//! keeps it from going back across boots: small machines without a battery start in 1970.
//!
//! On a mount that several hosts share, the boot clocks have nothing in common. There the modification times that the
//! server gives to written files serve as the dates of its answers.

use leasehold_core::StoreTime;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use super::locks::wait_for;
use super::permissions::open_regular;
use super::temps::Temps;
use super::{FolderAccess, FolderTime};
use crate::clock::Clock;
use crate::host::{Host, HostExt, Instant};

/// Interval at which the high-water mark is updated. A reboot with a broken wall clock loses at most this much time.
const HIGH_WATER_NS: i64 = 10_000_000_000;

/// Maximum size of a boot file, which holds two numbers.
const BOOT_BYTES_MAX: u64 = 64;

/// Width of "now" on a mount from which the server's time is read again.
const REFRESH_WIDTH: Duration = Duration::from_secs(5);

const SERVER_TIME: Timestamps = Timestamps {
    // Not omitted: with both times, write permission suffices, and the file may belong to another user.
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};

pub(super) struct FolderClock {
    clock: Clock,
    host: Arc<dyn Host>,
    access: FolderAccess,
    temps: Arc<Temps>,
    kind: Kind,
}

enum Kind {
    Host { offset_ns: i64, high: PathBuf, marked_ns: AtomicI64 },
    Mount { directory: PathBuf },
}

impl FolderClock {
    /// Source of the time.
    pub(super) fn time(&self) -> FolderTime {
        match self.kind {
            Kind::Host { .. } => FolderTime::Host,
            Kind::Mount { .. } => FolderTime::Mount,
        }
    }

    pub(super) fn open(
        own: &Path,
        time: Option<FolderTime>,
        access: FolderAccess,
        temps: &Arc<Temps>,
        host: &Arc<dyn Host>,
    ) -> io::Result<Self> {
        let directory = own.join("clock");
        match time.map_or_else(|| time_for(&directory), Ok)? {
            FolderTime::Host => {
                let offset_ns = offset_of_this_boot(&directory, temps, &**host, namespace_ns())?;
                Ok(Self::of_host(&directory, offset_ns, access, temps, host))
            }
            FolderTime::Mount => Self::of_mount(&directory, access, temps, host),
        }
    }

    /// Opens the clock for a process that may not write to the folder: the time of the writers of this boot, or the
    /// local wall clock if there were none, or on a mount, where only writers learn the server's time. Accurate enough
    /// for display: a process that cannot write decides nothing about leases.
    pub(super) fn open_for_reading(
        own: &Path,
        time: Option<FolderTime>,
        access: FolderAccess,
        temps: &Arc<Temps>,
        host: &Arc<dyn Host>,
    ) -> io::Result<Self> {
        let directory = own.join("clock");
        let time = match time {
            Some(time) => time,
            None if directory.exists() => time_for(&directory)?,
            None => FolderTime::Host,
        };
        if time == FolderTime::Mount
            && directory.exists()
            && let Ok(opened) = Self::of_mount(&directory, access, temps, host)
        {
            return Ok(opened);
        }
        let written = offset_in(&boot_file(&directory)?, namespace_ns())?;
        let offset_ns = written.unwrap_or_else(|| first_offset(&directory, &**host));
        Ok(Self::of_host(&directory, offset_ns, access, temps, host))
    }

    fn of_host(
        directory: &Path,
        offset_ns: i64,
        access: FolderAccess,
        temps: &Arc<Temps>,
        host: &Arc<dyn Host>,
    ) -> Self {
        let reader = host.clone();
        let clock = Clock::exact(move || millis(reader.instant().boot_ns + offset_ns));
        let kind = Kind::Host { offset_ns, high: directory.join("high"), marked_ns: AtomicI64::new(0) };
        Self { clock, host: host.clone(), access, temps: temps.clone(), kind }
    }

    fn of_mount(
        directory: &Path,
        access: FolderAccess,
        temps: &Arc<Temps>,
        host: &Arc<dyn Host>,
    ) -> io::Result<Self> {
        let kind = Kind::Mount { directory: directory.to_owned() };
        let clock = Clock::dated(host.clone());
        let opened = Self { clock, host: host.clone(), access, temps: temps.clone(), kind };
        opened.refresh()?;
        Ok(opened)
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn instant(&self) -> Instant {
        self.host.instant()
    }

    /// Sets the modification time of a file to the folder's time; on a mount the server does it.
    pub(super) fn set_modified(&self, file: &File) -> io::Result<()> {
        let Kind::Host { offset_ns, high, marked_ns } = &self.kind else {
            return Ok(rustix::fs::futimens(file, &SERVER_TIME)?);
        };
        let now_ns = self.host.instant().boot_ns + offset_ns;
        if now_ns - marked_ns.load(Relaxed) > HIGH_WATER_NS {
            marked_ns.store(now_ns, Relaxed);
            // Renamed into place: only the owner of an existing file could set its time.
            self.temps.create(|mark| mark.set_modified(system_time(now_ns)))?.rename(high)?;
        }
        file.set_modified(system_time(now_ns))
    }

    /// Updates the clock from the server's modification time of a file that was written since `sent`.
    pub(super) fn observe_file(&self, file: &File, sent: Instant) -> io::Result<()> {
        if let Kind::Mount { .. } = self.kind {
            let date_secs = nanos(file.metadata()?.modified()?).div_euclid(1_000_000_000);
            self.clock.observe(date_secs, sent, self.host.instant());
        }
        Ok(())
    }

    /// Reads the time of a mount, which only writers can. Writes a temporary file at the start, and another when the
    /// bounds are missing or too wide: a process that only reads could otherwise wait for ever.
    pub(super) fn refresh(&self) -> io::Result<()> {
        let Kind::Mount { directory } = &self.kind else { return Ok(()) };
        let width = self.clock.now().and_then(|now| now.width());
        if width.is_some_and(|width| width < REFRESH_WIDTH) {
            return Ok(());
        }
        let path = directory.join(format!("probe-{:032x}", self.host.random_bits()));
        let sent = self.host.instant();
        let learnt = self.access.create_new(&path).and_then(|mut file| {
            file.write_all(b"?")?;
            file.sync_all()?;
            self.observe_file(&file, sent)
        });
        fs::remove_file(&path)?;
        learnt
    }
}

/// Modification time of a file, as the folder's time.
pub(super) fn modified(metadata: &fs::Metadata) -> StoreTime {
    metadata.modified().map_or(StoreTime::from_millis(0), |time| millis(nanos(time)))
}

/// Chooses the source of the time: file systems of other hosts (and possibly FUSE) have their own.
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

/// Folder time minus boot clock for this boot, as written by the first process of the boot.
fn offset_of_this_boot(
    directory: &Path,
    temps: &Temps,
    host: &dyn Host,
    namespace_ns: i64,
) -> io::Result<i64> {
    let lock = temps.append(&directory.join("lock"))?;
    wait_for(&lock, "its clock", host.instant(), || host.instant())?;
    let path = boot_file(directory)?;
    match offset_in(&path, namespace_ns)? {
        Some(offset_ns) => Ok(offset_ns),
        None => decide_offset(directory, &path, temps, host, namespace_ns),
    }
}

/// Path of the boot file, which holds the offset of this boot.
fn boot_file(directory: &Path) -> io::Result<PathBuf> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(directory.join(format!("boot-{}", boot_id.trim())))
}

/// Reads the offset in a boot file; none if there is no such file. It is renamed into place, so it is always complete.
fn offset_in(path: &Path, namespace_ns: i64) -> io::Result<Option<i64>> {
    let mut text = String::new();
    match open_regular(File::options().read(true), path) {
        // Bytes that are not text are corrupt too.
        Ok(file) => {
            file.take(BOOT_BYTES_MAX).read_to_string(&mut text).map_err(|error| match error.kind() {
                ErrorKind::InvalidData => corrupt(path),
                _ => error,
            })?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (offset_ns, folders_ns) = parse(&text).ok_or_else(|| corrupt(path))?;
    if folders_ns != namespace_ns {
        return Err(other_namespace((namespace_ns - folders_ns) / 1_000_000_000));
    }
    Ok(Some(offset_ns))
}

/// Parses the offset and, on a line of its own, the difference of its boot clock to the machine's. Older programs wrote
/// only the offset.
fn parse(text: &str) -> Option<(i64, i64)> {
    let mut numbers = text.lines().map(|line| line.trim().parse().ok());
    Some((numbers.next()??, numbers.next().unwrap_or(Some(0))?))
}

/// Difference of this process's boot clock to the machine's: not 0 in a time namespace. The kernel shows the namespace
/// of the process's children, which is its own unless it has created one.
fn namespace_ns() -> i64 {
    fs::read_to_string("/proc/self/timens_offsets").map_or(0, |text| boot_offset_ns(&text))
}

/// Parses the offset of the boot clock from lines such as `boottime 100 0`: seconds and nanoseconds.
fn boot_offset_ns(text: &str) -> i64 {
    let numbers = text.lines().find_map(|line| line.trim().strip_prefix("boottime"));
    let mut numbers = numbers.unwrap_or_default().split_whitespace().map(|word| word.parse().unwrap_or(0));
    let (secs, ns): (i64, i64) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    secs.saturating_mul(1_000_000_000).saturating_add(ns)
}

fn other_namespace(secs: i64) -> io::Error {
    let message = format!(
        "this process is in a time namespace whose boot clock differs by {secs} s from that of the folder; run it in the \
         namespace of the other processes, or use another folder"
    );
    io::Error::new(ErrorKind::InvalidInput, message)
}

/// Offset that the first process of a boot writes: by the wall clock, but never before the high-water mark.
fn first_offset(directory: &Path, host: &dyn Host) -> i64 {
    let high_ns = fs::metadata(directory.join("high")).and_then(|high| high.modified()).map_or(0, nanos);
    let instant = host.instant();
    instant.wall_ns.max(high_ns + HIGH_WATER_NS) - instant.boot_ns
}

fn decide_offset(
    directory: &Path,
    path: &Path,
    temps: &Temps,
    host: &dyn Host,
    namespace_ns: i64,
) -> io::Result<i64> {
    let offset_ns = first_offset(directory, host);
    let new = temps.create(|file| {
        file.write_all(format!("{offset_ns}\n{namespace_ns}\n").as_bytes())?;
        file.sync_all()
    });
    new?.rename(path)?;
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
    let message = format!("{} is corrupt; remove it while no process uses the folder", path.display());
    io::Error::new(ErrorKind::InvalidData, message)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeHost;

    #[test]
    fn the_offset_of_a_time_namespace_is_parsed() {
        assert_eq!(
            boot_offset_ns("monotonic           7         0\nboottime          100         5\n"),
            100_000_000_005
        );
        assert_eq!(boot_offset_ns("monotonic 0 0\nboottime -3 0\n"), -3_000_000_000);
        assert_eq!(boot_offset_ns(""), 0);
    }

    #[test]
    fn processes_of_another_time_namespace_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let host = FakeHost::new();
        let temps = Temps::open(folder.path(), FolderAccess::Private, &host).unwrap();
        let open = |ns| offset_of_this_boot(folder.path(), &temps, &host, ns);
        let first = open(0).unwrap();
        assert_eq!(open(0).unwrap(), first);
        let error = open(100_000_000_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("time namespace whose boot clock differs by 100 s"), "{error}");
    }

    #[test]
    fn a_boot_file_may_hold_the_offset_alone() {
        assert_eq!(parse("17"), Some((17, 0)));
        assert_eq!(parse("17\n-5\n"), Some((17, -5)));
        for wrong in ["", "x", "17\nx"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
