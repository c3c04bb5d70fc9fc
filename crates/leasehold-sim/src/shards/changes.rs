//! Workers die and join: time until the shards are divided evenly again, and stability afterwards.

use super::*;
use crate::faults::Faults;

/// Time to divide after a change: the leases of the dead expire, other workers see that in their next round
/// and take them in the one after.
const DIVIDED_WITHIN: Duration = Duration::from_secs(50);
/// Time to divide when one answer in fifty is lost or late: each that matters costs a quarter of a round, or
/// a half if it is a renewal.
const DIVIDED_ON_A_BAD_DAY: Duration = Duration::from_mins(1);
/// Time to divide after a join without deaths: holders see the new worker in their next round and release
/// shards, and the new worker takes them.
const JOINED_WITHIN: Duration = Duration::from_secs(20);

/// Workers in a world in which only the test kills workers.
struct Crew {
    world: World,
    watch: Watch,
    machines: BTreeMap<u64, ProcessId>,
}

impl Crew {
    fn new(seed: u64, faults: &Faults) -> Self {
        let calm = Faults { trouble_every: None, crash_at_write: 0, ..faults.clone() };
        let world = World::new(seed, calm).called("shards");
        world.trace().silence();
        let watch = Watch::new(&world);
        Self { world, watch, machines: BTreeMap::new() }
    }

    /// Starts workers within a second, like a fleet that is scaled up.
    fn come(&mut self, numbers: std::ops::Range<u64>) {
        let mut chance = self.world.chance(&format!("{numbers:?} come"));
        for number in numbers {
            let (host, client) = self.world.process(&format!("m{number}"));
            let part = Part { name: format!("w{number:02}"), leaves_at: None, watch: self.watch.clone() };
            let wait = host.sleep(chance.between(Duration::ZERO, Duration::from_secs(1)));
            self.machines.insert(number, host.process());
            self.world.spawn(host.process(), async move {
                wait.await;
                let queue = part.connect(&host, client).await;
                part.work(&queue, &host, Shutdown::default()).await.unwrap();
            });
        }
    }

    fn die(&mut self, count: usize) {
        let mut chance = self.world.chance("die");
        for _ in 0..count {
            let nth = chance.index(self.machines.len());
            let number = *self.machines.keys().nth(nth).unwrap();
            self.world.executor().kill(self.machines.remove(&number).unwrap());
        }
    }

    /// Waits until every shard has one holder, every worker has a share, and shares differ by at most one
    /// lease.
    fn until_divided(&mut self, limit: Duration) -> Duration {
        let (watch, count, began) = (self.watch.clone(), self.machines.len(), self.world.now());
        let is_divided = || watch.is_all_served() && watch.served().len() == count && watch.is_even();
        run(&mut self.world, &self.watch, is_divided, limit).unwrap_or_else(|failed| panic!("{failed}"));
        self.world.now().saturating_sub(began)
    }

    fn pass(&mut self, duration: Duration) {
        pass(&mut self.world, &self.watch, duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn stands_still(&mut self) {
        self.watch.stand_still();
        self.pass(IDLE_FOR);
        self.watch.has_stood_still().unwrap();
        self.watch.seen().still = None;
    }
}

/// Random time within a round: results must not depend on it.
fn a_while(crew: &Crew, purpose: &str) -> Duration {
    crew.world.chance(purpose).between(RENEW_EVERY * 3, RENEW_EVERY * 4)
}

/// Plays sixteen workers, of which four die, and then eight join. Returns the duration of each change.
fn play_changes(seed: u64, faults: &Faults, limit: Duration) -> [Duration; 3] {
    let mut crew = Crew::new(seed, faults);
    crew.come(0..16);
    let started = crew.until_divided(limit);
    crew.pass(a_while(&crew, "before the deaths"));
    crew.die(4);
    let survived = crew.until_divided(limit);
    crew.pass(a_while(&crew, "before the joins"));
    crew.come(16..24);
    [started, survived, crew.until_divided(limit)]
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
    print("a good day", &(0..40).map(play).collect::<Vec<_>>());
}

#[test]
fn sixteen_workers_then_four_die_then_eight_come_on_a_bad_day() {
    // No request is delayed for minutes: the scenario covers that.
    let faults = Faults { late: 0, very_slow: 0, ..Faults::mild() };
    let play = |seed| play_changes(seed, &faults, DIVIDED_ON_A_BAD_DAY);
    print("a bad day", &(100..130).map(play).collect::<Vec<_>>());
}

#[test]
fn a_worker_that_joins_when_all_is_held_has_its_share_within_two_rounds() {
    let mut longest = Duration::ZERO;
    for seed in crate::seeds(0..40) {
        let mut crew = Crew::new(seed, &Faults::none());
        let before = 1 + seed % 16;
        crew.come(0..before);
        crew.until_divided(DIVIDED_WITHIN);
        crew.pass(a_while(&crew, "before the join"));
        crew.come(before..before + 1);
        longest = longest.max(crew.until_divided(JOINED_WITHIN));
    }
    println!("one joins: {:.1} s", longest.as_secs_f64());
}

#[test]
fn nothing_moves_among_sixteen_workers_in_ten_idle_minutes() {
    for seed in 0..4 {
        let mut crew = Crew::new(seed, &Faults::none());
        crew.come(0..16);
        crew.until_divided(DIVIDED_WITHIN);
        crew.stands_still();
        crew.die(4);
        crew.until_divided(DIVIDED_WITHIN);
        crew.stands_still();
    }
}
