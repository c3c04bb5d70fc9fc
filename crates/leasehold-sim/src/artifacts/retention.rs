//! Artifacts that are removed while another process publishes them again.

use leasehold_core::{ArtifactId, keys};
use leasehold_pieces::{ArtifactStore, PublishOptions, prune};
use leasehold_store::{Client, Host, HostExt, List, Purpose};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::disk::{SimDisk, name_of};
use super::watch::Watch;
use crate::executor::ProcessId;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::queue::raw::Raw;
use crate::world::World;

const DAY: Duration = Duration::from_hours(25);
const HOUR: Duration = Duration::from_hours(1);
const FILE: usize = 5;

/// One file, in a world without faults except for those of the test.
struct Stage {
    world: World,
    disk: SimDisk,
    watch: Watch,
    artifact: ArtifactId,
    /// Number of successful publications.
    published: Arc<AtomicU64>,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed, Faults::none()).called("retention");
        let disk = SimDisk::new(&mut world.chance("retention")).unwrap();
        let watch = Watch::new(&world, &disk);
        let watching = watch.clone();
        world.check(move |change, objects| watching.changed(change, objects));
        let artifact = name_of(&std::fs::read(disk.input(FILE)).unwrap()).unwrap();
        Self { world, disk, watch, artifact, published: Arc::default() }
    }

    /// Publishes the file, with retries, after a random pause up to `after`.
    fn publish(&self, after: Duration) -> ProcessId {
        let (host, client) = self.world.process("producer");
        let (disk, watch, published) = (self.disk.clone(), self.watch.clone(), self.published.clone());
        let (alarm, process) = (self.world.alarm().clone(), host.process());
        self.world.spawn(host.process(), async move {
            know_the_time(&client).await;
            host.sleep(host.random_below(after)).await;
            let artifacts = ArtifactStore::new(client, disk.cache("producer").unwrap());
            let options = PublishOptions { keep: HOUR, ..PublishOptions::default() };
            while artifacts.publish(&disk.input(FILE), &options).await.is_err() {
                host.sleep(Duration::from_mins(5)).await;
            }
            let artifact = name_of(&std::fs::read(disk.input(FILE)).unwrap()).unwrap();
            alarm.check(watch.published(&artifact, HOUR));
            published.fetch_add(1, Relaxed);
        });
        process
    }

    fn prune(&self, after: Duration) -> Arc<SimHost> {
        let (host, client) = self.world.process("pruner");
        let own = host.clone();
        self.world.spawn(host.process(), async move {
            know_the_time(&client).await;
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
    fn about_to_go(seed: u64) -> Self {
        let mut stage = Self::new(seed);
        stage.publish(Duration::ZERO);
        stage.run_for(DAY);
        stage.prune(Duration::ZERO);
        stage.run_for(DAY);
        assert_eq!(stage.state(), "leaving");
        stage
    }

    fn run_until_closing(&mut self, with_data: bool) {
        let (bucket, artifact) = (self.world.bucket_handle(), self.artifact.clone());
        let is_so = || {
            bucket.look(|objects| {
                let manifest = objects.get(&keys::manifest(&artifact));
                manifest.is_some_and(|stored| Raw::read(stored).unwrap().text("state") == "closing")
                    && objects.contains_key(&keys::artifact_data(&artifact)) == with_data
            })
        };
        self.world.run_until(is_so, HOUR).unwrap_or_else(|failed| panic!("{failed}"));
    }
}

/// Learns the time, which is unknown before the first answer.
async fn know_the_time(client: &Client) {
    client.list(Purpose::Admin, &List::all("tasks/")).await.unwrap();
}

#[test]
fn a_file_past_its_retention_is_removed() {
    let mut stage = Stage::about_to_go(0);
    for _ in 0..3 {
        stage.prune(Duration::ZERO);
        stage.run_for(DAY);
    }
    assert!(!stage.world.objects().keys().any(|key| key.starts_with("artifacts/")));
}

/// A pruner that was paused for hours while it removed a file must not continue: the file may have been
/// published again.
#[test]
fn a_pruner_that_was_paused_removes_nothing_afterwards() {
    for with_data in [true, false] {
        for with_its_clock in [true, false] {
            let mut stage = Stage::about_to_go(1);
            let pruner = stage.prune(Duration::ZERO);
            stage.run_until_closing(with_data);
            if with_its_clock {
                pruner.machine().miss(HOUR * 3);
            }
            stage.world.executor().pause(pruner.process(), HOUR * 3);
            stage.run_for(HOUR + Duration::from_mins(10));
            stage.publish(Duration::ZERO);
            stage.run_for(HOUR * 4);
            assert_eq!(stage.state(), "kept");
        }
    }
}

/// One process finishes the removal of a dead pruner while another publishes the file again.
#[test]
fn a_file_that_is_published_while_the_rest_of_it_is_removed_is_whole() {
    for seed in crate::seeds(0..200) {
        let mut stage = Stage::about_to_go(seed);
        let pruner = stage.prune(Duration::ZERO);
        stage.run_until_closing(seed % 2 == 0);
        stage.world.executor().kill(pruner.process());
        stage.run_for(DAY);
        stage.prune(Duration::from_millis(500));
        stage.publish(Duration::from_millis(500));
        stage.run_for(HOUR * 2);
        assert_eq!((stage.published.load(Relaxed), stage.state().as_str()), (2, "kept"), "seed {seed}");
    }
}

/// The data of a dead publisher is removed after a week; another process may publish the same file at that
/// moment.
#[test]
fn a_file_that_is_published_while_what_was_left_of_it_is_removed_is_whole() {
    for seed in crate::seeds(0..200) {
        let mut stage = Stage::new(seed);
        let producer = stage.publish(Duration::ZERO);
        let (bucket, artifact) = (stage.world.bucket_handle(), stage.artifact.clone());
        let is_sent = || bucket.look(|objects| objects.contains_key(&keys::artifact_data(&artifact)));
        stage.world.run_until(is_sent, HOUR).unwrap_or_else(|failed| panic!("{failed}"));
        stage.world.executor().kill(producer);
        stage.run_for(DAY * 8);
        assert_eq!(stage.state(), "");
        stage.prune(Duration::from_millis(500));
        stage.publish(Duration::from_millis(500));
        stage.run_for(HOUR * 2);
        assert_eq!((stage.published.load(Relaxed), stage.state().as_str()), (1, "kept"), "seed {seed}");
    }
}
