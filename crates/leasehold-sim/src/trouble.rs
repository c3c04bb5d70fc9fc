//! Troubles of processes and clocks: crashes, pauses, stalls, jumps.

use std::sync::Arc;
use std::time::Duration;

use crate::chance::SimRandom;
use crate::executor::ProcessId;
use crate::faults::{Events, Troubles};
use crate::host::{SimHost, nanos};
use crate::world::Inner;

/// Pause between two reads of the faults while they have no trouble.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// Injects troubles as long as the world's faults ask for them.
pub(crate) async fn come(world: Arc<Inner>) {
    let mut chance = SimRandom::derived(world.seed, "trouble");
    loop {
        let Some(every) = world.network.faults().trouble_every else {
            world.executor.sleep(LOOK_EVERY).await;
            continue;
        };
        world.executor.sleep(chance.between(Duration::ZERO, every * 2)).await;
        let faults = world.network.faults();
        if faults.trouble_every.is_some() {
            let really = world.network.events(Events::next_happens);
            happen(&world, faults.troubles, &mut chance, really);
        }
    }
}

/// Kills the process of an actor if it still runs; the actor is restarted later.
pub(crate) fn crash_process(world: &Arc<Inner>, process: ProcessId) {
    let named = |(name, host): (String, Arc<SimHost>)| (host.process() == process).then_some(name);
    if let Some(name) = living(world).into_iter().find_map(named) {
        let mut chance = SimRandom::derived(world.seed, &format!("crash of {process:?}"));
        crash(world, &name, process, &mut chance, true);
    }
}

/// Draws a trouble, and injects it if `really`: the next draw is the same in either case.
fn happen(world: &Arc<Inner>, shares: Troubles, chance: &mut SimRandom, really: bool) {
    let living = living(world);
    let Some((name, host)) = living.get(chance.index(living.len())) else { return };
    let Troubles { crash: to_crash, pause, stall, wall_jump, date_jump } = shares;
    let drawn = chance.below(to_crash + pause + stall + wall_jump + date_jump);
    let now = world.executor.now();
    if drawn < to_crash {
        crash(world, name, host.process(), chance, really);
    } else if drawn < to_crash + pause {
        let duration = a_while(chance);
        if really {
            world.executor.pause(host.process(), duration);
        }
    } else if drawn < to_crash + pause + stall {
        let duration = a_while(chance);
        // A paused process would miss the same time twice, and its boot clock would go back.
        let here = world.neighbours(name);
        if !really || here.iter().any(|(_, host)| world.executor.is_paused(host.process())) {
            return;
        }
        world.trace.line(now, host.name(), "stalls, and its boot clock stops");
        host.machine().miss(duration);
        for (_, host) in &here {
            world.executor.pause(host.process(), duration);
        }
    } else if drawn < to_crash + pause + stall + wall_jump {
        let by_ns = chance.around_zero(nanos(Duration::from_hours(2)));
        if !really {
            return;
        }
        world.trace.line(
            now,
            host.name(),
            format_args!("has its wall clock set by {} s", by_ns / 1_000_000_000),
        );
        host.machine().jump_wall(by_ns);
    } else {
        let size = nanos(chance.between(Duration::from_secs(10), Duration::from_hours(1)));
        let by_ns = if chance.happens(5_000) { size } else { -size };
        if !really {
            return;
        }
        world.trace.line(now, "store", format_args!("has its time set by {} s", by_ns / 1_000_000_000));
        world.bucket.jump_time(by_ns);
    }
}

/// Draws a pause: mostly seconds, sometimes longer than any lease, never too short for a stall to be noticed.
fn a_while(chance: &mut SimRandom) -> Duration {
    let most = if chance.happens(3_000) { Duration::from_mins(5) } else { Duration::from_secs(20) };
    chance.between(Duration::from_secs(2), most)
}

fn crash(world: &Arc<Inner>, name: &str, process: ProcessId, chance: &mut SimRandom, really: bool) {
    let (reboots, away) =
        (chance.happens(2_000), chance.between(Duration::from_millis(100), Duration::from_mins(1)));
    if !really {
        return;
    }
    // A reboot kills all processes of the machine.
    let dead = if reboots { world.neighbours(name) } else { Vec::new() };
    let others = dead.into_iter().filter(|(other, _)| other != name);
    let dead = others.map(|(other, host)| (other, host.process()));
    let dead: Vec<_> = std::iter::once((name.to_owned(), process)).chain(dead).collect();
    for (name, process) in &dead {
        if let Some(actor) = world.people().actors.get_mut(name) {
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

fn living(world: &Inner) -> Vec<(String, Arc<SimHost>)> {
    let people = world.people();
    let hosts = people.actors.iter().map(|(name, actor)| Some((name.clone(), actor.host.clone()?)));
    hosts.flatten().collect()
}
