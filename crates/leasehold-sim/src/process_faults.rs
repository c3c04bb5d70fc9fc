//! Faults of processes and clocks: crashes, pauses, stalls, jumps.

use std::sync::Arc;
use std::time::Duration;

use crate::executor::ProcessId;
use crate::faults::{Events, ProcessFaults};
use crate::host::{SimHost, nanos};
use crate::random::SimRandom;
use crate::world::Inner;

/// Pause between two reads of the faults while none of them is due.
const RECHECK_EVERY: Duration = Duration::from_mins(10);

/// Injects faults of processes and clocks as long as the world's faults ask for them.
pub(crate) async fn inject(world: Arc<Inner>) {
    // The name selects the random numbers: another name would change what every seed does.
    let mut rng = SimRandom::derived(world.seed, "trouble");
    loop {
        let Some(every) = world.network.faults().process_fault_every else {
            world.executor.sleep(RECHECK_EVERY).await;
            continue;
        };
        world.executor.sleep(rng.between(Duration::ZERO, every * 2)).await;
        let faults = world.network.faults();
        if faults.process_fault_every.is_some() {
            let is_injected = world.network.events(Events::next_is_injected);
            inject_one(&world, faults.process_faults, &mut rng, is_injected);
        }
    }
}

/// Kills the process of an actor if it still runs; the actor is restarted later.
pub(crate) fn crash_process(world: &Arc<Inner>, process: ProcessId) {
    let named = |(name, host): (String, Arc<SimHost>)| (host.process() == process).then_some(name);
    if let Some(name) = running(world).into_iter().find_map(named) {
        let mut rng = SimRandom::derived(world.seed, &format!("crash of {process:?}"));
        crash(world, &name, process, &mut rng, true);
    }
}

/// Draws a fault, and injects it if `is_injected`: the next draw is the same in either case.
fn inject_one(world: &Arc<Inner>, shares: ProcessFaults, rng: &mut SimRandom, is_injected: bool) {
    let running = running(world);
    let Some((name, host)) = running.get(rng.index(running.len())) else { return };
    let ProcessFaults { crash: to_crash, pause, stall, wall_jump, date_jump } = shares;
    let drawn = rng.below(to_crash + pause + stall + wall_jump + date_jump);
    let now = world.executor.now();
    if drawn < to_crash {
        crash(world, name, host.process(), rng, is_injected);
    } else if drawn < to_crash + pause {
        let duration = random_pause(rng);
        if is_injected {
            world.executor.pause(host.process(), duration);
        }
    } else if drawn < to_crash + pause + stall {
        let duration = random_pause(rng);
        // A paused process would miss the same time twice, and its boot clock would go back.
        let here = world.neighbours(name);
        if !is_injected || here.iter().any(|(_, host)| world.executor.is_paused(host.process())) {
            return;
        }
        world.trace.line(now, host.name(), "stalls, and its boot clock stops");
        host.machine().miss(duration);
        for (_, host) in &here {
            world.executor.pause(host.process(), duration);
        }
    } else if drawn < to_crash + pause + stall + wall_jump {
        let by_ns = rng.around_zero(nanos(Duration::from_hours(2)));
        if !is_injected {
            return;
        }
        world.trace.line(
            now,
            host.name(),
            format_args!("has its wall clock set by {} s", by_ns / 1_000_000_000),
        );
        host.machine().jump_wall(by_ns);
    } else {
        let size = nanos(rng.between(Duration::from_secs(10), Duration::from_hours(1)));
        let by_ns = if rng.happens(5_000) { size } else { -size };
        if !is_injected {
            return;
        }
        world.trace.line(now, "store", format_args!("has its time set by {} s", by_ns / 1_000_000_000));
        world.bucket.jump_time(by_ns);
    }
}

/// Draws a pause: mostly seconds, sometimes longer than any lease, never too short for a stall to be noticed.
fn random_pause(rng: &mut SimRandom) -> Duration {
    let most = if rng.happens(3_000) { Duration::from_mins(5) } else { Duration::from_secs(20) };
    rng.between(Duration::from_secs(2), most)
}

fn crash(world: &Arc<Inner>, name: &str, process: ProcessId, rng: &mut SimRandom, is_injected: bool) {
    let (reboots, away) =
        (rng.happens(2_000), rng.between(Duration::from_millis(100), Duration::from_mins(1)));
    if !is_injected {
        return;
    }
    // A reboot kills all processes of the machine.
    let dead = if reboots { world.neighbours(name) } else { Vec::new() };
    let others = dead.into_iter().filter(|(other, _)| other != name);
    let dead = others.map(|(other, host)| (other, host.process()));
    let dead: Vec<_> = std::iter::once((name.to_owned(), process)).chain(dead).collect();
    for (name, process) in &dead {
        if let Some(actor) = world.registry().actors.get_mut(name) {
            actor.host = None;
        }
        world.executor.kill(*process);
    }
    if reboots {
        world.reboot(name);
    }
    for (name, _) in dead {
        let again = world.clone();
        let restart = async move {
            again.executor.sleep(away).await;
            again.start(&name);
        };
        world.executor.spawn(ProcessId::WORLD, Box::pin(restart));
    }
}

fn running(world: &Inner) -> Vec<(String, Arc<SimHost>)> {
    let registry = world.registry();
    let hosts = registry.actors.iter().map(|(name, actor)| Some((name.clone(), actor.host.clone()?)));
    hosts.flatten().collect()
}
