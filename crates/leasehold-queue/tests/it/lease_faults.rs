//! Leases under every single fault: take, renewal and release are run once for each of their requests and each fault
//! of that request, while two rivals try to take the same lease. At no time do two of them trust that they hold it,
//! no process that renews in time has to stop, and the lease never stays without a holder.

use leasehold_core::{HexName, Holder, Kind, Lease, Name};
use leasehold_queue::testing::leases::{Protocol, Real};
use leasehold_queue::{HeldLease, Leases, Renewed, Taken, break_lease};
use leasehold_store::testing::FakeHost;
use leasehold_store::{Client, Host, HostExt, List, MemoryStore, Store, When};
use serde_json::Map;
use std::sync::Arc;
use std::time::Duration;

use crate::leases::Variant;
use crate::support::stage::{Fate, Stage};
use crate::support::{mins, secs};

const KEY: &str = "shard-leases/0.json";
const TTL: Duration = Duration::from_secs(30);
/// Interval at which each process renews or tries.
const TICK: Duration = Duration::from_secs(5);
const TICKS: usize = 20;

const FATES: [Fate; 8] = [
    Fate::LoseAnswer,
    Fate::LoseRequest,
    Fate::Refuse,
    Fate::Unreached,
    Fate::Hold,
    Fate::Die,
    Fate::PassThenDie,
    Fate::HoldThenDie,
];

/// Tick at which a request in flight is applied: at once, while its lease lasts, and after that.
const LANDINGS: [usize; 5] = [0, 1, 3, 7, 12];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    TakeNew,
    TakeReleased,
    TakeExpired,
    Renew,
    Release,
}

const OPERATIONS: [Operation; 5] = [
    Operation::TakeNew,
    Operation::TakeReleased,
    Operation::TakeExpired,
    Operation::Renew,
    Operation::Release,
];

/// A process that tries to hold the lease all the time.
struct Contender {
    leases: Leases,
    held: Option<HeldLease>,
}

impl Contender {
    fn new(client: Client, number: u128) -> Self {
        // All with one worker id: only the instance tells them apart.
        let worker_id = Name::checked("worker id", "same").unwrap();
        let holder = Holder { worker_id, instance: HexName::from_random(number), ttl: TTL };
        Self { leases: Leases::new(client, holder).unwrap(), held: None }
    }

    fn trusts(&self) -> bool {
        let now = self.leases.client().now().unwrap();
        self.held.as_ref().is_some_and(|held| now.is_before(held.lease.expires_at))
    }

    /// Takes or renews the lease. A failure is retried at the next tick.
    async fn take_or_renew(&mut self, protocol: &dyn Protocol) -> Result<(), String> {
        let Some(held) = &mut self.held else {
            let taken = protocol.take(&self.leases, KEY, &Map::new()).await;
            if let Ok(Taken::Ours(held)) = taken {
                self.held = Some(held);
            }
            return Ok(());
        };
        match protocol.renew(&self.leases, held).await {
            Ok(Renewed::Lost) => Err("a holder that renews in time lost its lease".into()),
            Ok(Renewed::Kept) | Err(_) => Ok(()),
        }
    }

    async fn release(&mut self, protocol: &dyn Protocol) {
        if let Some(held) = self.held.take() {
            // After a failure the lease expires.
            let _ = protocol.release(&self.leases, held).await;
        }
    }
}

/// The process with faults, then its rivals.
struct Scene<'a> {
    host: FakeHost,
    stage: Arc<Stage>,
    contenders: [Contender; 3],
    protocol: &'a dyn Protocol,
    /// Every claim that was read, in order.
    claims: Vec<(u64, HexName)>,
}

impl<'a> Scene<'a> {
    fn new(retry_budget: Duration, protocol: &'a dyn Protocol) -> Self {
        let host = FakeHost::new();
        let as_host: Arc<dyn Host> = Arc::new(host.clone());
        let store = Arc::new(MemoryStore::new(&as_host));
        let stage = Arc::new(Stage::new(store.clone()));
        let unlucky = Client::new(stage.clone(), as_host.clone()).with_timeout(retry_budget);
        let rival = |number| Contender::new(Client::new(store.clone(), as_host.clone()), number);
        let contenders = [Contender::new(unlucky, 1), rival(2), rival(3)];
        Self { host, stage, contenders, protocol, claims: Vec::new() }
    }

    async fn prepare(&mut self, op: Operation) {
        match op {
            Operation::TakeNew => {}
            Operation::TakeReleased => {
                self.contenders[1].take_or_renew(self.protocol).await.unwrap();
                self.contenders[1].release(self.protocol).await;
            }
            Operation::TakeExpired => {
                self.contenders[1].take_or_renew(self.protocol).await.unwrap();
                self.contenders[1].held = None;
                self.host.advance(TTL + Duration::from_millis(1));
            }
            Operation::Renew | Operation::Release => {
                self.contenders[0].take_or_renew(self.protocol).await.unwrap();
                self.host.advance(TICK);
            }
        }
    }

    async fn run(&mut self, op: Operation) -> Result<(), String> {
        if op == Operation::Release {
            self.contenders[0].release(self.protocol).await;
        } else {
            self.contenders[0].take_or_renew(self.protocol).await?;
        }
        self.check()
    }

    /// All processes continue, each first in its turn; now and then a rival releases the lease.
    async fn tick(&mut self, tick: usize, is_dead: bool) -> Result<(), String> {
        let order = [tick % 3, (tick + 1) % 3, (tick + 2) % 3];
        for number in order.into_iter().filter(|number| !is_dead || *number != 0) {
            self.contenders[number].take_or_renew(self.protocol).await?;
            self.check()?;
        }
        if tick % 4 == 1 {
            for number in 1..3 {
                self.contenders[number].release(self.protocol).await;
                self.check()?;
            }
        }
        self.host.advance(TICK);
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        if self.contenders.iter().filter(|contender| contender.trusts()).count() > 1 {
            return Err("two processes trust the lease at once".into());
        }
        for held in self.contenders.iter().filter_map(|contender| contender.held.as_ref()) {
            let claim = (held.lease.epoch, held.lease.instance.clone());
            if self.claims.contains(&claim) {
                continue;
            }
            if self.claims.iter().any(|earlier| earlier.0 >= claim.0) {
                return Err(format!("epoch {} was there before", claim.0));
            }
            self.claims.push(claim);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    op: Operation,
    number: usize,
    fate: Fate,
    landing: usize,
    retry_budget: Duration,
}

async fn run_with_fault(case: Case, protocol: &dyn Protocol) -> Result<(), String> {
    let mut scene = Scene::new(case.retry_budget, protocol);
    scene.prepare(case.op).await;
    scene.stage.play_at(case.number, case.fate);
    scene.run(case.op).await?;
    let is_dead = matches!(case.fate, Fate::Die | Fate::PassThenDie | Fate::HoldThenDie)
        && scene.stage.asked().len() > case.number;
    if is_dead {
        scene.contenders[0].held = None;
    }
    for tick in 0..TICKS {
        if tick == case.landing {
            scene.stage.apply_late().await;
            scene.check()?;
        }
        scene.tick(tick, is_dead).await?;
    }
    match scene.contenders.iter().filter(|contender| contender.trusts()).count() {
        1 => Ok(()),
        count => Err(format!("in the end {count} trust")),
    }
}

/// Number of requests of an operation without faults; one more, to check that a repetition is safe, too.
async fn requests_of(op: Operation, protocol: &dyn Protocol) -> usize {
    let mut scene = Scene::new(secs(30), protocol);
    scene.prepare(op).await;
    scene.stage.play_at(usize::MAX, Fate::Pass);
    scene.run(op).await.unwrap();
    let requests = scene.stage.asked().len();
    assert!(requests > 0, "{op:?} asks nothing of the store");
    requests + 1
}

/// Runs every case; returns their number, or the first failure.
async fn run_all_cases(protocol: &dyn Protocol) -> Result<usize, String> {
    let mut runs = 0;
    for op in OPERATIONS {
        for number in 0..requests_of(op, protocol).await {
            for fate in FATES {
                let is_late = matches!(fate, Fate::Hold | Fate::HoldThenDie);
                for landing in if is_late { &LANDINGS[..] } else { &LANDINGS[..1] } {
                    for retry_budget in [Duration::ZERO, secs(30)] {
                        let case = Case { op, number, fate, landing: *landing, retry_budget };
                        run_with_fault(case, protocol).await.map_err(|wrong| format!("{case:?}: {wrong}"))?;
                        runs += 1;
                    }
                }
            }
        }
    }
    Ok(runs)
}

#[tokio::test]
async fn a_lease_survives_every_single_fault() {
    let runs = run_all_cases(&Real).await.unwrap();
    assert!(runs > 300, "only {runs} runs");
}

#[tokio::test]
async fn a_protocol_with_a_rule_left_out_does_not() {
    for (variant, wrong) in [
        (Variant::ByNameOnly, "two processes trust"),
        (Variant::DeletesOnRelease, "epoch 1 was there before"),
        (Variant::ReleasesAlways, "two processes trust"),
        (Variant::RenewsAlways, "two processes trust"),
        (Variant::RefusedIsLost, "lost its lease"),
        (Variant::UnansweredIsLost, "lost its lease"),
    ] {
        let found = run_all_cases(&variant).await.unwrap_err();
        assert!(found.contains(wrong), "{variant:?}: {found}");
    }
}

/// A process on a stage, the stage, and the store below it.
fn staged(host: &FakeHost) -> (Client, Arc<Stage>, Arc<MemoryStore>) {
    let as_host: Arc<dyn Host> = Arc::new(host.clone());
    let store = Arc::new(MemoryStore::new(&as_host));
    let stage = Arc::new(Stage::new(store.clone()));
    (Client::new(stage.clone(), as_host), stage, store)
}

async fn overwrite(store: &MemoryStore, body: &'static str) {
    store.put(KEY, body.into(), &When::Always).await.unwrap();
}

/// The timestamp in a list of an object that is rewritten before it is read says nothing about the new object: that
/// may be the lease of a newer program, which cannot be read here. Whenever it is rewritten, it stays.
#[tokio::test]
async fn a_corrupt_lease_is_judged_by_its_own_age() {
    for (is_listed, number) in (0..5).flat_map(|number| [(true, number), (false, number)]) {
        let host = FakeHost::new();
        let (client, stage, store) = staged(&host);
        overwrite(&store, "old nonsense").await;
        let stamp = store.list(&List::all(KEY)).await.unwrap().entries[0].modified;
        host.advance(mins(20));
        let rewritten = store.clone();
        stage.interrupt(move |n, _| n == number, async move { overwrite(&rewritten, "new nonsense").await });
        let leases = Contender::new(client.clone(), 1).leases;
        let taken = leases.take(KEY, &Map::new(), is_listed.then_some(stamp)).await;
        let stands = store.get(KEY, None).await.unwrap().found().unwrap().body;
        if stage.asked().len() > number {
            assert_eq!(taken.unwrap_err().kind(), Kind::Corrupt, "listed: {is_listed}, before {number}");
            assert_eq!(stands, "new nonsense", "listed: {is_listed}, before {number}");
        } else {
            assert!(matches!(taken.unwrap(), Taken::Ours(_)) && Lease::read(KEY, &stands).is_ok());
        }
    }
}

/// A break whose answer is lost must not end the lease that another process has taken since.
#[tokio::test]
async fn a_break_ends_only_the_lease_that_it_found() {
    let host = FakeHost::new();
    let (client, stage, store) = staged(&host);
    let plain = Client::new(store, Arc::new(host.clone()));
    let mut former = Contender::new(plain.clone(), host.random_bits());
    former.take_or_renew(&Real).await.unwrap();
    let next = Contender::new(plain.clone(), host.random_bits()).leases;
    stage.play(|number, _| if number == 1 { Fate::LoseAnswer } else { Fate::Pass });
    stage.interrupt(|number, _| number == 2, async move {
        assert!(matches!(next.take(KEY, &Map::new(), None).await.unwrap(), Taken::Ours(_)));
    });
    let broken = break_lease(&client, KEY, &Map::new()).await.unwrap();
    assert_eq!(broken.and_then(|found| found.lease).map(|lease| lease.epoch), Some(1));
    let stands = leasehold_queue::read_lease(&plain, KEY).await.unwrap().unwrap();
    assert!(!stands.is_released() && stands.epoch == 3, "{stands:?}");
    assert_eq!(former.take_or_renew(&Real).await.unwrap_err(), "a holder that renews in time lost its lease");
}
