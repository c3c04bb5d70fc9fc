use leasehold_store::{Purpose, Verb};

use super::*;
use crate::faults::Faults;
use crate::mutants::{BrokenRule, Mutant};
use crate::scenario::{Options, Scenario};

#[test]
fn nothing_waits_for_longer_than_a_poll() {
    for seed in crate::seeds(0..30) {
        let played = Scenario::Bell.play(seed, &Options::of(Scenario::Bell));
        played.unwrap_or_else(|failed| panic!("{failed}"));
    }
}

fn waited(seed: u64, mutant: Option<Mutant>, leasing: Option<&ShardLeasing>) -> Duration {
    let mut world = World::new(seed, Faults::none()).with_scenario("bell");
    let _active_mutant = mutant.map(|mutant| mutant.activate(&mut world));
    longest_wait(&mut world, leasing).unwrap_or_else(|failed| panic!("{failed}"))
}

/// Three workers divide the shards among themselves.
#[test]
fn nothing_waits_for_longer_than_a_poll_in_leased_shards() {
    for seed in crate::seeds(0..15) {
        let waited = waited(seed, None, Some(&ShardLeasing::default()));
        assert!(waited <= FOUND_WITHIN, "seed {seed}: {waited:?}");
    }
}

#[test]
fn without_the_bell_every_task_is_found_by_a_full_scan() {
    let mut longest = Duration::ZERO;
    for seed in crate::seeds(0..10) {
        let waited = waited(seed, Some(Mutant::Store(BrokenRule::NoRing)), None);
        assert!(waited <= FULL_SCAN_EVERY + FOUND_WITHIN, "seed {seed}: {waited:?}");
        longest = longest.max(waited);
    }
    assert!(longest > FOUND_WITHIN, "the bell was not lost");
}

/// Fifty idle workers with 256 shards, for an hour.
#[test]
fn an_idle_cluster_makes_few_requests() {
    const WORKERS: u64 = 50;
    let mut world = World::new(1, Faults::none()).with_scenario("idle");
    let (log, clock) = (Log::default(), Clock(world.executor().clone()));
    let mut clients = Vec::new();
    for number in 0..WORKERS {
        let (host, client) = world.process(&format!("worker {number}"));
        clients.push(client.clone());
        world.spawn(host.process(), work(clock.clone(), "w", client, log.clone(), None));
    }
    world.run_for(Duration::from_mins(5)).unwrap_or_else(|failed| panic!("{failed}"));
    let before: Vec<_> = clients.iter().map(|client| client.ledger().snapshot()).collect();
    world.run_for(Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
    let (polls, full_scans) = (1_800 * WORKERS, 60 * WORKERS);
    let (mut gets, mut lists, mut all) = (0, 0, 0);
    for (client, before) in clients.iter().zip(&before) {
        let spent = client.ledger().snapshot().since(before);
        gets += spent.count(|line| line.verb == Verb::Get && line.purpose == Purpose::Discover);
        lists += spent.verb(Verb::List);
        all += spent.requests();
    }
    // One get per poll; per full scan one list of each index, one of the overflow every other minute, and one
    // of the expired keys each half hour. One worker lists the inboxes, every minute. `queue.json` is read
    // every half minute, and the lease of the inbox duty every two and a half.
    assert!(gets <= polls * 11 / 10, "{gets} gets for {polls} polls");
    assert!(lists <= 2 * full_scans + 33 * WORKERS + 70, "{lists} lists for {full_scans} full scans");
    let (meta, turns) = (130 * WORKERS, 30 * WORKERS + 70);
    assert!(all <= gets + lists + meta + turns, "{all} requests, {gets} gets, {lists} lists");
}
