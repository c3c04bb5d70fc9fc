//! When a worker scans the index of a queue, and which part of it.
//!
//! An idle worker does not scan. It reads the bell (the notification object) and scans when that has changed, when a
//! minute begins that has scheduled tasks, and periodically, because a ring may be lost. Each poll covers the inbox of
//! the worker, its shards and the overflow, in this order, and each of them only if there is a reason to. A poll that
//! finds nothing makes the next pause longer.
//!
//! ```text
//!   rest ──▶ inbox: bell, scan? ──▶ shards: bell, scan? ──▶ overflow: scan? ──▶ conclude ──▶ rest
//! ```
//!
//! [`ScanSchedule`] only decides. Times are passed in, and the worker reports what it has read and found.

use std::time::Duration;

use crate::{Now, ShardRange, StoreTime};

use super::Polling;

/// Minimum pause before a known due time: a scan that is a moment early finds nothing.
const RESCAN_PAUSE_MIN: Duration = Duration::from_millis(10);

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Time since boot, by the local clock.
    pub local: Duration,
    /// Time of the store.
    pub now: Now,
}

impl Moment {
    fn since(&self, earlier: Duration) -> Duration {
        self.local.saturating_sub(earlier)
    }

    /// Time until *now* may have reached this time.
    fn until_possible(&self, at: StoreTime) -> Duration {
        at.since(self.now.latest_known()).max(RESCAN_PAUSE_MIN)
    }
}

/// Settings of a schedule.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Polling intervals.
    pub polling: Polling,
    /// Interval of full scans: the inbox and the shards are scanned without a ring.
    pub full_scan_every: Duration,
    /// Interval at which the overflow is scanned without a ring.
    pub overflow_every: Duration,
    /// True if the worker ends when nothing is left: then every poll scans its shards.
    pub until_empty: bool,
    /// True if the worker leases its shards: then the periodic scan covers the shards of other workers, too.
    pub is_leasing: bool,
}

/// Parts of the index that a worker serves at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served {
    /// True if it certainly holds its inbox.
    pub inbox: bool,
    /// Its shards.
    pub shards: Vec<ShardRange>,
    /// True if it scans the overflow.
    pub overflow: bool,
}

/// A part of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanTarget {
    /// The inbox of the worker.
    Inbox,
    /// The shards.
    Shards,
    /// The overflow.
    Overflow,
}

/// Next action of a worker that has a free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Rest for this time.
    Rest(Duration),
    /// Read the bell of this place.
    ReadBell(ScanTarget),
    /// Scan a part of the index.
    Scan(IndexScan),
    /// End the poll, and report whether it has [found](ScanSchedule::found) something or [nothing](ScanSchedule::found_nothing).
    Conclude {
        /// True if the poll began when no task ran. Otherwise it may have missed what such a task has released.
        was_idle: bool,
    },
}

/// A scan of a part of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexScan {
    /// Part of the index.
    pub scope: ScanScope,
    /// True to begin at a random shard: the last scan has not reached the end, and no shard is to wait for those before
    /// it.
    pub is_random_start: bool,
    /// True if there was a reason other than the interval to scan the shards: tasks may have become pending.
    pub has_reason: bool,
    /// True if this is the full scan, the periodic one of the shards.
    pub is_full_scan: bool,
}

/// Part of the index to scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanScope {
    /// The inbox of the worker.
    Inbox {
        /// True if it was not scanned before, or not since its worker was woken.
        is_first: bool,
    },
    /// All shards, those of other workers as well.
    AllShards,
    /// The shards of the worker, with one list of the whole index: nearly always all entries fit in one page.
    OwnInOneList,
    /// The shards of the worker.
    Own {
        /// True if the bell has rung: then few shards have entries.
        has_rung: bool,
    },
    /// The overflow.
    Overflow,
}

impl ScanScope {
    /// Place that it belongs to.
    #[must_use]
    pub fn target(self) -> ScanTarget {
        match self {
            Self::Inbox { .. } => ScanTarget::Inbox,
            Self::AllShards | Self::OwnInOneList | Self::Own { .. } => ScanTarget::Shards,
            Self::Overflow => ScanTarget::Overflow,
        }
    }
}

/// State of one place.
#[derive(Debug, Clone, Default)]
struct PlaceState {
    /// Time of the last scan, by the local clock.
    scanned_at: Option<Duration>,
    /// The first future minute that has entries.
    next: Option<StoreTime>,
    /// True if the last scan did not reach the end.
    is_partial: bool,
    /// True if the bell has rung since the last scan.
    has_rung: bool,
    /// Time of the second scan after a ring.
    second_scan_at: Option<StoreTime>,
}

impl PlaceState {
    fn scan_soon(&mut self) {
        (self.scanned_at, self.next) = (None, None);
    }

    /// True if there may be entries that the last scan has not found.
    fn may_have_more(&self, at: &Moment) -> bool {
        self.scanned_at.is_none()
            || self.is_partial
            || self.has_rung
            || self.next.is_some_and(|next| at.now.is_due(next))
            || self.second_scan_at.is_some_and(|second| at.now.has_reached(second))
    }

    fn is_older_than(&self, every: Duration, at: &Moment) -> bool {
        self.scanned_at.is_none_or(|scanned| at.since(scanned) >= every)
    }
}

/// Position in a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No poll.
    Rest,
    /// At a place, whose bell was read or need not be.
    At { place: ScanTarget, is_bell_read: bool },
    /// All places are done.
    Done,
}

/// Decides what a worker scans, and when.
#[derive(Debug)]
pub struct ScanSchedule {
    options: ScanOptions,
    phase: Phase,
    /// True if no task ran when the poll began.
    was_idle: bool,
    inbox: PlaceState,
    shards: PlaceState,
    overflow: PlaceState,
    /// Shards that were served at the last scan of the shards.
    scanned_shards: Vec<ShardRange>,
    /// True if that scan covered the shards of other workers.
    covers_all: bool,
    /// Time of the last full scan, and whether it was partial.
    last_full_scan: Option<(Duration, bool)>,
    /// True if the ready index does not fit in one page.
    is_crowded: bool,
    /// Current polling interval.
    pause: Duration,
    /// Start and duration of the rest; none means to poll at once.
    rest: Option<(Duration, Duration)>,
    /// Time of the last probe of a failing store.
    probed_at: Option<Duration>,
    /// Time since which no slot was free.
    full_since: Option<Duration>,
}

impl ScanSchedule {
    /// Creates a schedule that begins with a poll of everything.
    #[must_use]
    pub fn new(options: ScanOptions) -> Self {
        Self {
            phase: Phase::Rest,
            was_idle: false,
            inbox: PlaceState::default(),
            shards: PlaceState::default(),
            overflow: PlaceState::default(),
            scanned_shards: Vec::new(),
            covers_all: false,
            last_full_scan: None,
            is_crowded: false,
            pause: options.polling.min,
            rest: None,
            probed_at: None,
            full_since: None,
            options,
        }
    }

    /// Decides what to do next. `resume_at` is the earliest time at which a known entry may be claimed, which ends a
    /// rest; `is_idle` is true if no task runs.
    pub fn next(
        &mut self,
        at: &Moment,
        served: &Served,
        resume_at: Option<StoreTime>,
        is_idle: bool,
    ) -> Action {
        loop {
            let (place, is_bell_read) = match self.phase {
                Phase::Rest => {
                    if let Some(left) = self.until_poll(at, resume_at) {
                        return Action::Rest(left);
                    }
                    (self.was_idle, self.phase) = (is_idle, entering(ScanTarget::Inbox));
                    continue;
                }
                Phase::At { place, is_bell_read } => (place, is_bell_read),
                Phase::Done => {
                    self.phase = Phase::Rest;
                    return Action::Conclude { was_idle: self.was_idle };
                }
            };
            if !is_bell_read && self.reads_bell(place, served) {
                self.phase = Phase::At { place, is_bell_read: true };
                return Action::ReadBell(place);
            }
            self.phase = match place {
                ScanTarget::Inbox => entering(ScanTarget::Shards),
                ScanTarget::Shards => entering(ScanTarget::Overflow),
                ScanTarget::Overflow => Phase::Done,
            };
            let scan = match place {
                ScanTarget::Inbox => self.side_scan(place, served.inbox, self.options.full_scan_every, at),
                ScanTarget::Shards => self.shard_scan(at, served),
                ScanTarget::Overflow => {
                    self.side_scan(place, served.overflow, self.options.overflow_every, at)
                }
            };
            if let Some(scan) = scan {
                return Action::Scan(scan);
            }
        }
    }

    /// True if the bell of a place is to be read before it is decided whether to scan it. The scan then includes
    /// everything that was rung for.
    fn reads_bell(&self, place: ScanTarget, served: &Served) -> bool {
        match place {
            ScanTarget::Inbox => served.inbox && !self.inbox.is_partial,
            ScanTarget::Shards => !served.shards.is_empty() && !self.shards.is_partial,
            ScanTarget::Overflow => false,
        }
    }

    /// Scan of the inbox or the overflow, if it is due.
    fn side_scan(
        &mut self,
        side: ScanTarget,
        is_served: bool,
        every: Duration,
        at: &Moment,
    ) -> Option<IndexScan> {
        let state = self.state(side);
        if !is_served {
            // Rings are not read meanwhile.
            state.scan_soon();
            return None;
        }
        let is_first = state.scanned_at.is_none();
        let scope =
            if side == ScanTarget::Inbox { ScanScope::Inbox { is_first } } else { ScanScope::Overflow };
        let scan = IndexScan { scope, is_random_start: false, has_reason: false, is_full_scan: false };
        (state.may_have_more(at) || state.is_older_than(every, at)).then_some(scan)
    }

    fn shard_scan(&mut self, at: &Moment, served: &Served) -> Option<IndexScan> {
        let is_full_scan = self.is_full_scan(at, served);
        if served.shards.is_empty() && !is_full_scan {
            // Rings are not read meanwhile: the shards are scanned when some are served again.
            self.scanned_shards.clear();
            self.shards.next = None;
            return None;
        }
        let has_reason =
            self.shards.may_have_more(at) || self.has_new_shards(served) || self.options.until_empty;
        if !has_reason && !is_full_scan {
            return None;
        }
        let covers_all = is_full_scan && self.options.is_leasing;
        let (scope, is_random_start) = if covers_all {
            (ScanScope::AllShards, self.last_full_scan.is_some_and(|(_, is_partial)| is_partial))
        } else if !self.is_crowded && served.shards.len() > 1 {
            (ScanScope::OwnInOneList, false)
        } else {
            (ScanScope::Own { has_rung: self.shards.has_rung }, self.shards.is_partial)
        };
        Some(IndexScan { scope, is_random_start, has_reason, is_full_scan })
    }

    /// True if the next scan of the shards is the full scan.
    fn is_full_scan(&self, at: &Moment, served: &Served) -> bool {
        // A worker that needs long for a page would otherwise scan nothing but the shards of other workers.
        let continues_own = self.covers_all && self.shards.is_partial && !served.shards.is_empty();
        let full_scan_at = self.last_full_scan.map(|(at, _)| at);
        let last = if self.options.is_leasing { full_scan_at } else { self.shards.scanned_at };
        !continues_own && last.is_none_or(|last| at.since(last) >= self.options.full_scan_every)
    }

    /// True if the served shards differ from those of the last scan. A lease that could not be trusted for a while may
    /// be the same as before, but rings were not read meanwhile.
    #[must_use]
    pub fn has_new_shards(&self, served: &Served) -> bool {
        served.shards != self.scanned_shards
    }

    /// Records that the bell of a place has rung, when the second scan is due, and if it was rung for the overflow.
    pub fn rung(&mut self, place: ScanTarget, second_scan_at: Option<StoreTime>, is_for_overflow: bool) {
        let state = self.state(place);
        (state.has_rung, state.second_scan_at) = (true, second_scan_at);
        if is_for_overflow {
            self.overflow.scan_soon();
        }
    }

    /// Records the start of a scan. If the time of the second scan after a ring has come, this is the one.
    pub fn started(&mut self, scan: &IndexScan, at: &Moment, served: &Served) {
        let state = self.state(scan.scope.target());
        let second_scan_at = state.second_scan_at.filter(|second| !at.now.has_reached(*second));
        *state = PlaceState { scanned_at: Some(at.local), second_scan_at, ..PlaceState::default() };
        if scan.scope.target() == ScanTarget::Shards {
            self.covers_all = scan.scope == ScanScope::AllShards;
            self.scanned_shards.clone_from(&served.shards);
        }
    }

    /// Records the first future minute that a page of a scan has shown.
    pub fn page_read(&mut self, place: ScanTarget, next: Option<StoreTime>) {
        let state = self.state(place);
        state.next = [state.next, next].into_iter().flatten().min();
    }

    /// Records the end of a scan: if it is partial, because it has not reached the end, and if the ready index is too
    /// large for one page.
    pub fn ended(&mut self, scan: &IndexScan, is_partial: bool, is_crowded: bool) {
        self.state(scan.scope.target()).is_partial = is_partial;
        self.is_crowded = is_crowded;
        if scan.is_full_scan {
            self.last_full_scan = self.shards.scanned_at.map(|at| (at, is_partial));
        }
    }

    /// True if the ready index does not fit in one page.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Records that an action has failed: the poll begins again. A scan that the bell has asked for is still to be made.
    pub fn failed(&mut self, action: Action) {
        self.phase = Phase::Rest;
        if let Action::Scan(scan) = action {
            match scan.scope.target() {
                ScanTarget::Shards => self.shards.scanned_at = None,
                side => self.state(side).scan_soon(),
            }
        }
    }

    /// Records that the poll has found entries to claim. A complete scan need not be repeated at once.
    pub fn found(&mut self, at: &Moment) {
        self.pause = self.options.polling.min;
        self.rest = (!self.is_partial()).then_some((at.local, self.pause));
    }

    /// Records that the poll has found nothing. `random` gives the jitter of the pause.
    pub fn found_nothing(&mut self, at: &Moment, random: u64) {
        let jitter = u64::try_from((self.pause / 5).as_nanos()).unwrap_or(u64::MAX).max(1);
        let usual = self.pause.mul_f64(0.9) + Duration::from_nanos(random % jitter);
        // Or less if a minute with entries begins before.
        let minute = self.next_minute().map_or(usual, |minute| at.until_possible(minute).min(usual));
        self.rest = Some((at.local, minute));
        self.pause = self.options.polling.slower(self.pause);
    }

    /// True if the last scan of some place did not reach the end.
    fn is_partial(&self) -> bool {
        [&self.inbox, &self.shards, &self.overflow].into_iter().any(|state| state.is_partial)
    }

    /// True if the last scan of the shards did not reach the end.
    #[must_use]
    pub fn is_shard_scan_partial(&self) -> bool {
        self.shards.is_partial
    }

    /// The first future minute that has entries, from the last scans.
    #[must_use]
    pub fn next_minute(&self) -> Option<StoreTime> {
        [&self.inbox, &self.shards, &self.overflow].into_iter().filter_map(|state| state.next).min()
    }

    /// Time until the next poll, or until a known entry may be claimed.
    fn until_poll(&self, at: &Moment, resume_at: Option<StoreTime>) -> Option<Duration> {
        let (since, pause) = self.rest?;
        let left = pause.checked_sub(at.since(since))?;
        let resume = resume_at.map_or(left, |resume_at| at.until_possible(resume_at));
        Some(resume.min(left)).filter(|left| !left.is_zero())
    }

    /// Ends the rest, because a task has become pending in this process.
    pub fn wake(&mut self) {
        self.pause = self.options.polling.min;
        (self.rest, self.shards.scanned_at) = (None, None);
        self.inbox.scan_soon();
    }

    /// Polls everything again, because claims were paused and changes meanwhile were not rung for.
    pub fn resume(&mut self) {
        (self.rest, self.shards.scanned_at) = (None, None);
        self.scan_sides_soon();
    }

    /// Scans again where an entry was found that may not be claimed at present: another scan has to find it.
    pub fn entry_dropped(&mut self) {
        self.shards.scanned_at = None;
        self.inbox.scan_soon();
    }

    /// Scans the inbox and the overflow with the next poll.
    pub fn scan_sides_soon(&mut self) {
        self.inbox.scan_soon();
        self.overflow.scan_soon();
    }

    /// Time until a failing store is probed; zero if this is the time; none while it answers. `outage` is the pause
    /// between probes. A probe does not wait for the usual pause.
    pub fn until_probe(&mut self, local: Duration, outage: Option<Duration>) -> Option<Duration> {
        let Some(pause) = outage else {
            self.probed_at = None;
            return None;
        };
        let left = self.probed_at.map_or(Duration::ZERO, |at| pause.saturating_sub(local.saturating_sub(at)));
        if left.is_zero() {
            (self.probed_at, self.rest) = (Some(local), None);
        }
        Some(left)
    }

    /// Records that no slot is free. Returns true if that is so for long: then other workers are to run the tasks in the
    /// inbox, which is scanned again afterwards.
    pub fn slots_full(&mut self, local: Duration) -> bool {
        let since = *self.full_since.get_or_insert(local);
        let is_long = local.saturating_sub(since) >= self.options.full_scan_every;
        if is_long {
            self.full_since = Some(local);
            self.inbox.scan_soon();
        }
        is_long
    }

    /// Records that a slot was free.
    pub fn slot_freed(&mut self) {
        self.full_since = None;
    }

    fn state(&mut self, place: ScanTarget) -> &mut PlaceState {
        match place {
            ScanTarget::Inbox => &mut self.inbox,
            ScanTarget::Shards => &mut self.shards,
            ScanTarget::Overflow => &mut self.overflow,
        }
    }
}

fn entering(place: ScanTarget) -> Phase {
    Phase::At { place, is_bell_read: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardLen;
    use std::fmt::Write;

    const SECOND: Duration = Duration::from_secs(1);
    /// The start of a minute.
    const START: StoreTime = StoreTime::from_millis(1_700_000_040_000);

    /// A worker whose requests are answered at once, and a table of its actions.
    struct World {
        schedule: ScanSchedule,
        served: Served,
        local: Duration,
        /// Due time of a task in the shards.
        scheduled: Option<StoreTime>,
        table: String,
    }

    /// Answers to the requests of one poll.
    #[derive(Default, Clone, Copy)]
    struct Answers {
        rung: Option<ScanTarget>,
        found: Option<ScanTarget>,
        partial: Option<ScanTarget>,
        /// The request that fails: `bell` or `scan`.
        fails: Option<&'static str>,
        crowded: bool,
        overflow: bool,
    }

    impl World {
        fn new(title: &str, options: ScanOptions, shards: usize) -> Self {
            let served = Served { inbox: false, shards: ranges(shards), overflow: true };
            let table = format!("\n{title}\n");
            Self {
                schedule: ScanSchedule::new(options),
                served,
                local: SECOND * 1_000,
                scheduled: None,
                table,
            }
        }

        fn moment(&self) -> Moment {
            let now = Now::exactly(START.plus(self.local.saturating_sub(SECOND * 1_000)));
            Moment { local: self.local, now }
        }

        fn line(&mut self, event: &str, what: &str) {
            let at = self.local.as_secs_f64() - 1_000.0;
            writeln!(self.table, "{at:6.1} s  {event:24} {what}").unwrap();
        }

        /// Rests, polls once, and prints what was done.
        fn poll(&mut self, event: &str, answers: Answers) {
            let mut done = Vec::new();
            loop {
                let (at, served) = (self.moment(), self.served.clone());
                let action = self.schedule.next(&at, &served, None, true);
                let place = match action {
                    Action::Rest(left) => {
                        self.local += left;
                        continue;
                    }
                    Action::Conclude { .. } => break,
                    Action::ReadBell(place) => place,
                    Action::Scan(scan) => scan.scope.target(),
                };
                done.push(described(action));
                let is_bell = matches!(action, Action::ReadBell(_));
                if answers.fails == Some(if is_bell { "bell" } else { "scan" }) {
                    self.schedule.failed(action);
                    done.push("failed".to_owned());
                    self.line(event, &done.join(", "));
                    self.local += SECOND;
                    return;
                }
                let (now, schedule) = (at.now, &mut self.schedule);
                match action {
                    Action::Scan(scan) => {
                        schedule.started(&scan, &at, &served);
                        let is_shown = |due: &StoreTime| place == ScanTarget::Shards && !now.is_due(*due);
                        schedule.page_read(place, self.scheduled.filter(is_shown));
                        let is_crowded =
                            if place == ScanTarget::Shards { answers.crowded } else { schedule.is_crowded() };
                        schedule.ended(&scan, answers.partial == Some(place), is_crowded);
                    }
                    _ if answers.rung == Some(place) => {
                        schedule.rung(place, Some(now.earliest.plus(SECOND)), answers.overflow);
                    }
                    _ => {}
                }
            }
            if answers.found.is_some() {
                self.schedule.found(&self.moment());
            } else {
                self.schedule.found_nothing(&self.moment(), 0);
            }
            let rest = self.schedule.until_poll(&self.moment(), None).unwrap_or_default();
            done.push(format!("rest {:.2} s", rest.as_secs_f64()));
            self.line(event, &done.join(", "));
        }

        fn idle_until(&mut self, secs: u32) {
            let mut polls = 0;
            while self.local < SECOND * (1_000 + secs) {
                let before = self.table.len();
                self.poll("idle", Answers::default());
                if self.table[before..].contains("scan") {
                    continue;
                }
                self.table.truncate(before);
                polls += 1;
            }
            self.line("idle", &format!("{polls} polls without a scan"));
        }
    }

    fn ranges(count: usize) -> Vec<ShardRange> {
        ShardLen::DEFAULT.groups().into_iter().step_by(2).take(count).collect()
    }

    fn described(action: Action) -> String {
        match action {
            Action::ReadBell(place) => format!("bell of {place:?}").to_lowercase(),
            Action::Scan(IndexScan { scope, is_random_start, has_reason, is_full_scan }) => {
                let is_first = scope == ScanScope::Inbox { is_first: true };
                let scope = match scope {
                    ScanScope::Inbox { .. } => "inbox",
                    ScanScope::Overflow => return "scan overflow".to_owned(),
                    ScanScope::AllShards => "all shards",
                    ScanScope::OwnInOneList => "own shards in one list",
                    ScanScope::Own { has_rung: false } => "own shards",
                    ScanScope::Own { has_rung: true } => "own shards (rung)",
                };
                let flags = [
                    (is_first, "first"),
                    (is_random_start, "random start"),
                    (has_reason, "reason"),
                    (is_full_scan, "periodic"),
                ];
                let flags: Vec<_> =
                    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
                if flags.is_empty() {
                    format!("scan {scope}")
                } else {
                    format!("scan {scope} ({})", flags.join(", "))
                }
            }
            Action::Rest(_) | Action::Conclude { .. } => unreachable!("no request"),
        }
    }

    fn options() -> ScanOptions {
        ScanOptions {
            polling: Polling::default(),
            full_scan_every: SECOND * 60,
            overflow_every: SECOND * 120,
            until_empty: false,
            is_leasing: false,
        }
    }

    /// Prints a line per poll: what a worker scans, and why.
    #[test]
    fn every_scan_has_a_reason() {
        let none = Answers::default();
        let mut tables = String::new();

        let (rung, found) = (Some(ScanTarget::Shards), Some(ScanTarget::Shards));
        let mut world = World::new("all shards, no inbox", options(), 1);
        world.poll("start", none);
        world.poll("nothing has changed", none);
        world.poll("ring", Answers { rung, found, ..none });
        world.idle_until(5);
        world.poll("ring, many entries", Answers { rung, found, partial: Some(ScanTarget::Shards), ..none });
        world.scheduled = Some(START.plus(SECOND * 30));
        world.poll("rest of them", none);
        world.idle_until(45);
        world.poll("ring for the overflow", Answers { rung, overflow: true, ..none });
        world.schedule.wake();
        world.poll("submit in this process", none);
        world.poll("bell unreadable", Answers { fails: Some("bell"), ..none });
        world.poll("again", none);
        world.poll("ring, scan fails", Answers { rung, fails: Some("scan"), ..none });
        world.poll("again", none);
        world.idle_until(200);
        tables += &world.table;

        let mut world = World::new("leased shards", ScanOptions { is_leasing: true, ..options() }, 0);
        world.poll(
            "no lease yet",
            Answers { partial: Some(ScanTarget::Shards), found: Some(ScanTarget::Shards), ..none },
        );
        world.served.shards = ranges(1);
        world.poll("first lease", none);
        world.poll("nothing has changed", none);
        world.served.shards = ranges(3);
        world.poll("more leases", Answers { crowded: true, ..none });
        world.poll("ring, crowded", Answers { rung, crowded: true, ..none });
        world.served.shards = Vec::new();
        world.poll("leases lost", none);
        world.idle_until(130);
        tables += &world.table;

        let mut world = World::new("inbox", options(), 1);
        world.served.inbox = true;
        world.poll("start", none);
        world.poll("ring", Answers { rung: Some(ScanTarget::Inbox), found: Some(ScanTarget::Inbox), ..none });
        world.idle_until(3);
        world.served.inbox = false;
        world.poll("inbox lost", none);
        world.served.inbox = true;
        world.poll("inbox held again", none);
        tables += &world.table;

        let mut world = World::new("until empty", ScanOptions { until_empty: true, ..options() }, 1);
        world.poll("start", none);
        world.poll("nothing has changed", none);
        tables += &world.table;
        insta::assert_snapshot!(tables);
    }

    #[test]
    fn a_failing_store_is_probed_after_its_pause() {
        let mut schedule = ScanSchedule::new(options());
        let mut probe = |secs: u32, outage: Option<u32>| {
            let left = schedule.until_probe(SECOND * secs, outage.map(|pause| SECOND * pause));
            left.map(|left| left.as_secs())
        };
        assert_eq!([probe(1, None), probe(2, Some(1)), probe(2, Some(1))], [None, Some(0), Some(1)]);
        assert_eq!([probe(5, Some(4)), probe(6, Some(4)), probe(7, None)], [Some(1), Some(0), None]);
        assert_eq!(probe(8, Some(30)), Some(0), "the first probe of the next outage is at once");
    }

    #[test]
    fn an_inbox_is_passed_on_when_no_slot_was_free_for_long() {
        let mut schedule = ScanSchedule::new(options());
        let mut full = |secs: u32| schedule.slots_full(SECOND * secs);
        assert_eq!([full(0), full(59), full(60), full(61)], [false, false, true, false]);
        schedule.slot_freed();
        assert!(!schedule.slots_full(SECOND * 200));
    }
}
