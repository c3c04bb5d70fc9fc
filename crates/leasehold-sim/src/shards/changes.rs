//! Workers die and workers come: how soon is everything divided evenly again, and does it stay so?

use super::*;
use crate::faults::Faults;

/// After every change: the leases of the dead run out, the others see that in their next round and take in the one after.
const DIVIDED_WITHIN: Duration = Duration::from_secs(50);
/// The same when one answer in fifty is lost or late: each of those that matter costs a quarter of a round, or a half if
/// it is a renewal.
const DIVIDED_ON_A_BAD_DAY: Duration = Duration::from_mins(1);
/// Nobody has died: those who hold see the joiner in their next round and give back, and the joiner takes.
const JOINED_WITHIN: Duration = Duration::from_secs(20);

/// Workers in a world in which nobody dies but by our hand.
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

    /// They come within a second, like a fleet that is scaled up.
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

    /// Every shard has one holder, everyone has a share, and shares differ by at most one lease.
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

/// Some time within a round: what happens must not depend on when.
fn a_while(crew: &Crew, purpose: &str) -> Duration {
    crew.world.chance(purpose).between(RENEW_EVERY * 3, RENEW_EVERY * 4)
}

/// Sixteen, then four die, then eight come; how long each took.
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
    // Nothing is held up for minutes: for that there is the scenario.
    let faults = Faults { late: 0, very_slow: 0, ..Faults::mild() };
    let play = |seed| play_changes(seed, &faults, DIVIDED_ON_A_BAD_DAY);
    print("a bad day", &(100..130).map(play).collect::<Vec<_>>());
}

#[test]
fn whoever_joins_when_all_is_held_has_its_share_within_two_rounds() {
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
