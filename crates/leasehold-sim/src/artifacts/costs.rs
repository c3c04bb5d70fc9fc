//! Cost of artifacts without faults: every request is counted.

use leasehold_pieces::{ArtifactStore, PublishOptions};
use leasehold_store::{Client, Purpose, Verb};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::disk::SimDisk;
use crate::faults::Faults;
use crate::world::World;

/// Returns gets and puts for artifacts.
fn requests_made(client: &Client) -> (u64, u64) {
    let spent = client.ledger().snapshot();
    let of = |verb| spent.count(|line| line.purpose == Purpose::Fetch && line.verb == verb);
    (of(Verb::Get), of(Verb::Put))
}

#[test]
fn every_request_for_a_file_has_a_reason() {
    for seed in 0..5 {
        let mut world = World::new(seed, Faults::none()).with_scenario("bills");
        let disk = SimDisk::new(&mut world.rng("bills")).unwrap();
        let (host, client) = world.process("one");
        let costs = Arc::<Mutex<Vec<_>>>::default();
        let (counts, own) = (costs.clone(), disk.clone());
        world.spawn(host.process(), async move {
            // The time is unknown before the first answer.
            drop(client.list(Purpose::Admin, &leasehold_store::List::all("tasks/")).await);
            let artifacts = ArtifactStore::new(client.clone(), own.cache("one").unwrap());
            let options = PublishOptions { piece_bytes: Some(1_024), ..PublishOptions::default() };
            let mut last = requests_made(&client);
            let mut record = |what| {
                let now = requests_made(&client);
                counts.lock().unwrap().push((what, now.0 - last.0, now.1 - last.1));
                last = now;
            };
            for number in 0..SimDisk::INPUTS {
                let published = artifacts.publish(&own.input(number), &options).await.unwrap();
                record("new");
                artifacts.publish(&own.input(number), &options).await.unwrap();
                record("known");
                let artifact = &published.manifest.artifact;
                artifacts.fetch(artifact, &|_| ()).await.unwrap();
                record(if published.manifest.cut.size() == 0 { "fetched, empty" } else { "fetched" });
                artifacts.fetch(artifact, &|_| ()).await.unwrap();
                record("here");
            }
        });
        let done = || costs.lock().unwrap().len() == 4 * SimDisk::INPUTS;
        world.run_until(done, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
        for (what, gets, puts) in costs.lock().unwrap().iter() {
            let fair = match *what {
                "new" => (1, 2),
                "known" | "fetched, empty" => (1, 0),
                "fetched" => (2, 0),
                // Nothing is left to fetch.
                _ => (0, 0),
            };
            assert_eq!((*gets, *puts), fair, "seed {seed}: {what}");
        }
    }
}
