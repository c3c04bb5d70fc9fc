//! Workers crash and join: time until the shards are divided evenly again, and stability afterwards.

use super::*;
use crate::faults::Faults;

/// Time to divide after a change: the leases of crashed workers expire, other workers see that in their next round
/// and take them in the one after.
const DIVIDED_WITHIN: Duration = Duration::from_secs(50);
/// Time to divide when one answer in fifty is lost or late: each that matters costs a quarter of a round, or
/// a half if it is a renewal.
const DIVIDED_UNDER_MILD_FAULTS: Duration = Duration::from_mins(1);
/// Time to divide after a join without crashes: holders see the new worker in their next round and release
/// shards, and the new worker takes them.
const JOINED_WITHIN: Duration = Duration::from_secs(20);

/// Workers in a world in which only the test kills workers.
struct Fleet {
    world: World,
    checker: ShardChecker,
    machines: BTreeMap<u64, ProcessId>,
}

impl Fleet {
    fn new(seed: u64, faults: &Faults) -> Self {
        let calm = Faults { process_fault_every: None, crash_at_write: 0, ..faults.clone() };
        let world = World::new(seed, calm).with_scenario("shards");
        world.trace().silence();
        let checker = ShardChecker::new(&world);
        Self { world, checker, machines: BTreeMap::new() }
    }

    /// Starts workers within a second, like a fleet that is scaled up.
    fn add_workers(&mut self, numbers: std::ops::Range<u64>) {
        let mut rng = self.world.rng(&format!("{numbers:?} come"));
        for number in numbers {
            let (host, client) = self.world.process(&format!("m{number}"));
            let actor =
                ShardWorker { name: format!("w{number:02}"), leaves_at: None, checker: self.checker.clone() };
            let wait = host.sleep(rng.between(Duration::ZERO, Duration::from_secs(1)));
            self.machines.insert(number, host.process());
            self.world.spawn(host.process(), async move {
                wait.await;
                let queue = actor.connect(&host, client).await;
                actor.work(&queue, &host, Shutdown::default()).await.unwrap();
            });
        }
    }

    fn kill_workers(&mut self, count: usize) {
        let mut rng = self.world.rng("die");
        for _ in 0..count {
            let nth = rng.index(self.machines.len());
            let number = *self.machines.keys().nth(nth).unwrap();
            self.world.executor().kill(self.machines.remove(&number).unwrap());
        }
    }

    /// Waits until every shard has one holder, every worker has a share, and shares differ by at most one
    /// lease.
    fn until_divided(&mut self, limit: Duration) -> Duration {
        let (checker, count, began) = (self.checker.clone(), self.machines.len(), self.world.now());
        let is_divided = || checker.is_all_served() && checker.served().len() == count && checker.is_even();
        run(&mut self.world, &self.checker, is_divided, limit).unwrap_or_else(|failed| panic!("{failed}"));
        self.world.now().saturating_sub(began)
    }

    fn advance(&mut self, duration: Duration) {
        advance(&mut self.world, &self.checker, duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn assert_unmoved(&mut self) {
        self.checker.record_baseline();
        self.advance(IDLE_FOR);
        self.checker.check_unmoved().unwrap();
        self.checker.observed().baseline = None;
    }
}

/// Random time within a round: results must not depend on it.
fn random_pause(fleet: &Fleet, purpose: &str) -> Duration {
    fleet.world.rng(purpose).between(RENEW_EVERY * 3, RENEW_EVERY * 4)
}

/// Plays sixteen workers, of which four crash, and then eight join. Returns the duration of each change.
fn play_changes(seed: u64, faults: &Faults, limit: Duration) -> [Duration; 3] {
    let mut fleet = Fleet::new(seed, faults);
    fleet.add_workers(0..16);
    let started = fleet.until_divided(limit);
    fleet.advance(random_pause(&fleet, "before the deaths"));
    fleet.kill_workers(4);
    let survived = fleet.until_divided(limit);
    fleet.advance(random_pause(&fleet, "before the joins"));
    fleet.add_workers(16..24);
    [started, survived, fleet.until_divided(limit)]
}

fn print(what: &str, took: &[[Duration; 3]]) {
    let longest = |nth: usize| took.iter().map(|took| took[nth]).max().unwrap_or_default().as_secs_f64();
    let in_time = took.iter().flatten().filter(|took| **took <= DIVIDED_WITHIN).count();
    let (came, died, joined) = (longest(0), longest(1), longest(2));
    println!(
        "{what}, {} seeds: 16 come {came:.1} s, 4 die {died:.1} s, 8 join {joined:.1} s; {in_time} of {} within 50 s",
        took.len(),
        3 * took.len()
    );
}

#[test]
fn sixteen_workers_then_four_die_then_eight_come() {
    let play = |seed| play_changes(seed, &Faults::none(), DIVIDED_WITHIN);
    print("without faults", &(0..40).map(play).collect::<Vec<_>>());
}

#[test]
fn sixteen_workers_then_four_die_then_eight_come_under_mild_faults() {
    // No request is delayed for minutes: the scenario covers that.
    let faults = Faults { late: 0, very_slow: 0, ..Faults::mild() };
    let play = |seed| play_changes(seed, &faults, DIVIDED_UNDER_MILD_FAULTS);
    print("mild faults", &(100..130).map(play).collect::<Vec<_>>());
}

#[test]
fn a_worker_that_joins_when_all_is_held_has_its_share_within_two_rounds() {
    let mut longest = Duration::ZERO;
    for seed in crate::seeds(0..40) {
        let mut fleet = Fleet::new(seed, &Faults::none());
        let before = 1 + seed % 16;
        fleet.add_workers(0..before);
        fleet.until_divided(DIVIDED_WITHIN);
        fleet.advance(random_pause(&fleet, "before the join"));
        fleet.add_workers(before..before + 1);
        longest = longest.max(fleet.until_divided(JOINED_WITHIN));
    }
    println!("one joins: {:.1} s", longest.as_secs_f64());
}

#[test]
fn nothing_moves_among_sixteen_workers_in_ten_idle_minutes() {
    for seed in 0..4 {
        let mut fleet = Fleet::new(seed, &Faults::none());
        fleet.add_workers(0..16);
        fleet.until_divided(DIVIDED_WITHIN);
        fleet.assert_unmoved();
        fleet.kill_workers(4);
        fleet.until_divided(DIVIDED_WITHIN);
        fleet.assert_unmoved();
    }
}
