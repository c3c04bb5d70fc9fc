use leasehold_core::{HexName, Holder, keys};
use leasehold_queue::lease::{Leases, break_lease};
use serde_json::Map;

use super::*;
use crate::faults::{Faults, Troubles};
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Shards.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

/// Wild, but for the store's own time: after a jump nobody promises anything for hours.
fn wild() -> Faults {
    let wild = Faults::wild();
    Faults { troubles: Troubles { date_jump: 0, ..wild.troubles }, ..wild }
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::default() };
    for seed in 0..1 {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn shards_have_one_holder_and_are_shared_evenly_whatever_goes_wrong() {
    let options = Options { faults: wild(), ..Options::default() };
    for seed in 0..10 {
        play(seed, &options);
    }
}

#[test]
fn shards_are_served_again_after_the_time_of_the_store_has_jumped() {
    for seed in 100..104 {
        play(seed, &Options::default());
    }
}

#[test]
fn shards_have_one_holder_and_are_shared_evenly_on_a_bad_day() {
    let options = Options { faults: Faults::mild(), ..Options::default() };
    for seed in 200..206 {
        play(seed, &options);
    }
}

#[test]
fn shards_are_shared_evenly_on_a_good_day() {
    let options = Options { faults: Faults::none(), ..Options::default() };
    for seed in 300..302 {
        play(seed, &options);
    }
}

/// Breaks the lease on a name and takes it, as a second process of that name would.
async fn take_name(client: Client, name: &'static str) {
    let worker_id = leasehold_core::ids::Name::checked("worker id", name).unwrap();
    let key = keys::worker_lease(&worker_id);
    break_lease(&client, &key).await.unwrap();
    let holder = Holder { worker_id, instance: HexName::from_random(7), ttl: Duration::from_mins(5) };
    Leases::new(client, holder).unwrap().take(&key, &Map::new(), None).await.unwrap();
}

/// It kept its shards for ever: nobody counted it, so that its share was missing from those of the others.
#[test]
fn a_worker_that_lost_its_name_gives_its_shards_back() {
    let mut world = World::new(1, Faults::none()).called("shards");
    let watch = Watch::new(&world);
    for name in ["w1", "w2"] {
        let part = Part { name: name.to_owned(), leaves_at: None, watch: watch.clone() };
        world.actor(name, move |host, client| Box::pin(part.clone().play(host, client)));
    }
    let failed = |failed| panic!("{failed}");
    run(&mut world, &watch, || watch.is_all_served() && watch.is_even(), EVEN_WITHIN).unwrap_or_else(failed);
    let (host, client) = world.process("twin");
    world.spawn(host.process(), take_name(client, "w2"));
    let serves_none = || watch.served().values().any(|(name, ranges)| name == "w2" && ranges.is_empty());
    run(&mut world, &watch, serves_none, RENEW_EVERY * 2).unwrap_or_else(failed);
}
