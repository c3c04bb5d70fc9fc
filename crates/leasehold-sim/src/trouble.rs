//! What happens to processes and clocks: crashes, pauses, stalls, jumps.

use std::sync::Arc;
use std::time::Duration;

use crate::chance::Chance;
use crate::executor::ProcessId;
use crate::faults::{Events, Troubles};
use crate::host::{SimHost, nanos};
use crate::world::Inner;

/// How often the faults are looked at while there is no trouble among them.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// Lets trouble come for as long as the world's faults ask for it.
pub(crate) async fn come(world: Arc<Inner>) {
    let mut chance = Chance::derived(world.seed, "trouble");
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

/// Kills an actor's process, if it is one that still lives; the actor is started again later.
pub(crate) fn crash_process(world: &Arc<Inner>, process: ProcessId) {
    let named = |(name, host): (String, Arc<SimHost>)| (host.process() == process).then_some(name);
    if let Some(name) = living(world).into_iter().find_map(named) {
        let mut chance = Chance::derived(world.seed, &format!("crash of {process:?}"));
        crash(world, &name, process, &mut chance, true);
    }
}

/// Draws a trouble, and lets it happen if it really is to: the next one is the same in any case.
fn happen(world: &Arc<Inner>, shares: Troubles, chance: &mut Chance, really: bool) {
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
        // Whoever stands still already would miss the same time twice, and its boot clock would go back.
        let here = world.neighbours(name);
        if !really || here.iter().any(|(_, host)| world.executor.is_paused(host.process())) {
            return;
        }
        world.trace.line(now, host.name(), "stalls, and its boot clock with it");
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

/// Mostly seconds; sometimes longer than any lease. Never so short that a stall could not be noticed.
fn a_while(chance: &mut Chance) -> Duration {
    let most = if chance.happens(3_000) { Duration::from_mins(5) } else { Duration::from_secs(20) };
    chance.between(Duration::from_secs(2), most)
}

fn crash(world: &Arc<Inner>, name: &str, process: ProcessId, chance: &mut Chance, really: bool) {
    let (reboots, away) =
        (chance.happens(2_000), chance.between(Duration::from_millis(100), Duration::from_mins(1)));
    if !really {
        return;
    }
    // With a machine go all of its processes.
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
