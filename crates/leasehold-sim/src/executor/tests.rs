use super::*;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

fn executor() -> Executor {
    Executor::new(SimRandom::new(1), Trace::new())
}

/// Runs until no task is ready and no timer is set.
fn rest(executor: &Executor) -> Option<String> {
    loop {
        match executor.step(Duration::MAX) {
            ExecutorStep::AtRest => return None,
            ExecutorStep::Panicked(words) => return Some(words),
            ExecutorStep::Polled | ExecutorStep::Passed => {}
        }
    }
}

fn count_after(executor: &Executor, wait: Duration, count: &Arc<AtomicU32>) -> BoxFuture<'static, ()> {
    let (sleep, count) = (executor.sleep(wait), count.clone());
    Box::pin(async move {
        sleep.await;
        count.fetch_add(1, Relaxed);
    })
}

#[test]
#[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
fn a_virtual_day_costs_no_real_time() {
    let (executor, started) = (executor(), Instant::now());
    let idle = executor.clone();
    executor.spawn(
        ProcessId::WORLD,
        Box::pin(async move {
            for _ in 0..24 * 60 * 60 {
                idle.sleep(Duration::from_secs(1)).await;
            }
        }),
    );
    assert_eq!(rest(&executor), None);
    assert_eq!(executor.now(), Duration::from_hours(24));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn a_killed_process_loses_its_tasks_where_they_are() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let (executor, dropped, counted) = (executor(), Arc::default(), Arc::default());
    let (doomed, other) = (executor.process("doomed"), executor.process("other"));
    let (guard, sleep) = (Dropped(Arc::clone(&dropped)), executor.sleep(Duration::from_secs(2)));
    executor.spawn(
        doomed,
        Box::pin(async move {
            let _guard = guard;
            sleep.await;
            panic!("it should be dead");
        }),
    );
    executor.spawn(other, count_after(&executor, Duration::from_secs(2), &counted));
    while executor.now() < Duration::from_secs(1) {
        let _ = executor.step(Duration::from_secs(1));
    }
    executor.kill(doomed);
    assert!(dropped.load(Relaxed) == 1 && !executor.is_alive(doomed) && executor.is_alive(other));
    let mut late = executor.spawn_owned(doomed, count_after(&executor, Duration::ZERO, &counted));
    assert_eq!((&mut late).now_or_never(), Some(End::Stopped));
    assert_eq!((rest(&executor), counted.load(Relaxed)), (None, 1));
}

#[test]
fn a_process_can_kill_itself() {
    let executor = executor();
    let process = executor.process("tired");
    let own = executor.clone();
    executor.spawn(
        process,
        Box::pin(async move {
            own.kill(process);
            own.sleep(Duration::from_secs(1)).await;
            panic!("it should be dead");
        }),
    );
    assert_eq!((rest(&executor), executor.is_alive(process)), (None, false));
}

#[test]
fn a_paused_process_sees_its_timers_fire_late() {
    let (executor, paused, other) = (executor(), Arc::default(), Arc::default());
    let process = executor.process("paused");
    executor.spawn(process, count_after(&executor, Duration::from_secs(1), &paused));
    executor.spawn(executor.process("other"), count_after(&executor, Duration::from_secs(1), &other));
    executor.pause(process, Duration::from_mins(1));
    executor.pause(process, Duration::from_secs(5));
    while executor.now() < Duration::from_secs(59) {
        let _ = executor.step(Duration::from_secs(59));
    }
    assert_eq!((paused.load(Relaxed), other.load(Relaxed)), (0, 1));
    assert_eq!(rest(&executor), None);
    assert_eq!((paused.load(Relaxed), executor.now()), (1, Duration::from_mins(1)));
}

#[test]
fn owners_receive_the_end_of_their_tasks() {
    let executor = executor();
    let process = executor.process("owner");
    let mut done = executor.spawn_owned(process, Box::pin(async {}));
    let mut panicked = executor.spawn_owned(process, Box::pin(async { panic!("on purpose") }));
    let mut stopped = executor.spawn_owned(process, Box::pin(std::future::pending()));
    drop(executor.spawn_owned(process, Box::pin(async { panic!("it should never run") })));
    stopped.stop();
    assert_eq!(rest(&executor), None);
    assert_eq!((&mut done).now_or_never(), Some(End::Done));
    assert_eq!((&mut panicked).now_or_never(), Some(End::Panicked("on purpose".into())));
    assert_eq!((&mut stopped).now_or_never(), Some(End::Stopped));
    assert!(executor.trace.lines().iter().any(|line| line.ends_with("owner panics: on purpose")));
    executor.spawn(process, Box::pin(async { panic!("unowned") }));
    assert_eq!(rest(&executor).as_deref(), Some("unowned"));
}

#[test]
fn the_order_of_polls_depends_on_the_seed_alone() {
    let order = |seed| {
        let executor = Executor::new(SimRandom::new(seed), Trace::new());
        let order = Arc::new(Mutex::new(Vec::new()));
        for task in 0..20 {
            let order = order.clone();
            executor.spawn(ProcessId::WORLD, Box::pin(async move { lock(&order).push(task) }));
        }
        rest(&executor);
        std::mem::take(&mut *lock(&order))
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}
