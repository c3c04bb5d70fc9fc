//! Artifacts that are removed while another process publishes them again.

use leasehold_core::{ArtifactId, keys};
use leasehold_pieces::{ArtifactStore, PublishOptions, prune};
use leasehold_store::{Client, Host, HostExt, List, Purpose};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::checker::ArtifactChecker;
use super::disk::{SimDisk, name_of};
use crate::executor::ProcessId;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::queue::raw::Raw;
use crate::world::World;

const DAY: Duration = Duration::from_hours(25);
const HOUR: Duration = Duration::from_hours(1);
const FILE: usize = 5;

/// One file, in a world without faults except for those of the test.
struct Fixture {
    world: World,
    disk: SimDisk,
    artifact_checker: ArtifactChecker,
    artifact: ArtifactId,
    /// Number of successful publications.
    published: Arc<AtomicU64>,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed, Faults::none()).with_scenario("retention");
        let disk = SimDisk::new(&mut world.rng("retention")).unwrap();
        let artifact_checker = ArtifactChecker::new(&world, &disk);
        let checking = artifact_checker.clone();
        world.check(move |change, objects| checking.changed(change, objects));
        let artifact = name_of(&std::fs::read(disk.input(FILE)).unwrap()).unwrap();
        Self { world, disk, artifact_checker, artifact, published: Arc::default() }
    }

    /// Publishes the file, with retries, after a random pause up to `after`.
    fn publish(&self, after: Duration) -> ProcessId {
        let (host, client) = self.world.process("producer");
        let (disk, artifact_checker, published) =
            (self.disk.clone(), self.artifact_checker.clone(), self.published.clone());
        let (alarm, process) = (self.world.alarm().clone(), host.process());
        self.world.spawn(host.process(), async move {
            learn_store_time(&client).await;
            host.sleep(host.random_below(after)).await;
            let artifacts = ArtifactStore::new(client, disk.cache("producer").unwrap());
            let options = PublishOptions { keep: HOUR, ..PublishOptions::default() };
            while artifacts.publish(&disk.input(FILE), &options).await.is_err() {
                host.sleep(Duration::from_mins(5)).await;
            }
            let artifact = name_of(&std::fs::read(disk.input(FILE)).unwrap()).unwrap();
            alarm.check(artifact_checker.published(&artifact, HOUR));
            published.fetch_add(1, Relaxed);
        });
        process
    }

    fn prune(&self, after: Duration) -> Arc<SimHost> {
        let (host, client) = self.world.process("pruner");
        let own = host.clone();
        self.world.spawn(host.process(), async move {
            learn_store_time(&client).await;
            own.sleep(own.random_below(after)).await;
            prune(&client).await.unwrap();
        });
        host
    }

    fn run_for(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn state(&self) -> String {
        let objects = self.world.objects();
        let manifest = objects.get(&keys::manifest(&self.artifact));
        manifest.map_or_else(String::new, |stored| Raw::read(stored).unwrap().text("state").to_owned())
    }

    /// Prepares a published file past its retention, which the next prune removes.
    fn past_retention(seed: u64) -> Self {
        let mut fixture = Self::new(seed);
        fixture.publish(Duration::ZERO);
        fixture.run_for(DAY);
        fixture.prune(Duration::ZERO);
        fixture.run_for(DAY);
        assert_eq!(fixture.state(), "leaving");
        fixture
    }

    fn run_until_deleting(&mut self, with_data: bool) {
        let (bucket, artifact) = (self.world.bucket_handle(), self.artifact.clone());
        let is_so = || {
            bucket.with_objects(|objects| {
                let manifest = objects.get(&keys::manifest(&artifact));
                manifest.is_some_and(|stored| Raw::read(stored).unwrap().text("state") == "closing")
                    && objects.contains_key(&keys::artifact_data(&artifact)) == with_data
            })
        };
        self.world.run_until(is_so, HOUR).unwrap_or_else(|failed| panic!("{failed}"));
    }
}

/// Learns the time, which is unknown before the first answer.
async fn learn_store_time(client: &Client) {
    client.list(Purpose::Admin, &List::all("tasks/")).await.unwrap();
}

#[test]
fn a_file_past_its_retention_is_removed() {
    let mut fixture = Fixture::past_retention(0);
    for _ in 0..3 {
        fixture.prune(Duration::ZERO);
        fixture.run_for(DAY);
    }
    assert!(!fixture.world.objects().keys().any(|key| key.starts_with("artifacts/")));
}

/// A pruner that was paused for hours while it removed a file must not continue: the file may have been
/// published again.
#[test]
fn a_pruner_that_was_paused_removes_nothing_afterwards() {
    for with_data in [true, false] {
        for with_its_clock in [true, false] {
            let mut fixture = Fixture::past_retention(1);
            let pruner = fixture.prune(Duration::ZERO);
            fixture.run_until_deleting(with_data);
            if with_its_clock {
                pruner.machine().miss(HOUR * 3);
            }
            fixture.world.executor().pause(pruner.process(), HOUR * 3);
            fixture.run_for(HOUR + Duration::from_mins(10));
            fixture.publish(Duration::ZERO);
            fixture.run_for(HOUR * 4);
            assert_eq!(fixture.state(), "kept");
        }
    }
}

/// One process finishes the removal of a crashed pruner while another publishes the file again.
#[test]
fn a_file_that_is_published_while_the_rest_of_it_is_removed_is_whole() {
    for seed in crate::seeds(0..200) {
        let mut fixture = Fixture::past_retention(seed);
        let pruner = fixture.prune(Duration::ZERO);
        fixture.run_until_deleting(seed % 2 == 0);
        fixture.world.executor().kill(pruner.process());
        fixture.run_for(DAY);
        fixture.prune(Duration::from_millis(500));
        fixture.publish(Duration::from_millis(500));
        fixture.run_for(HOUR * 2);
        assert_eq!((fixture.published.load(Relaxed), fixture.state().as_str()), (2, "kept"), "seed {seed}");
    }
}

/// The data of a crashed publisher is removed after a week; another process may publish the same file at that
/// moment.
#[test]
fn a_file_that_is_published_while_what_was_left_of_it_is_removed_is_whole() {
    for seed in crate::seeds(0..200) {
        let mut fixture = Fixture::new(seed);
        let producer = fixture.publish(Duration::ZERO);
        let (bucket, artifact) = (fixture.world.bucket_handle(), fixture.artifact.clone());
        let is_sent = || bucket.with_objects(|objects| objects.contains_key(&keys::artifact_data(&artifact)));
        fixture.world.run_until(is_sent, HOUR).unwrap_or_else(|failed| panic!("{failed}"));
        fixture.world.executor().kill(producer);
        fixture.run_for(DAY * 8);
        assert_eq!(fixture.state(), "");
        fixture.prune(Duration::from_millis(500));
        fixture.publish(Duration::from_millis(500));
        fixture.run_for(HOUR * 2);
        assert_eq!((fixture.published.load(Relaxed), fixture.state().as_str()), (1, "kept"), "seed {seed}");
    }
}
