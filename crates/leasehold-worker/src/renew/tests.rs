use futures::future::BoxFuture;
use leasehold_core::{HexName, NewTask, Now, Result, ShardLen, StepContext, StoreTime, Task, TaskId};
use leasehold_queue::Settlement;
use leasehold_queue::source::ClaimedTask;
use serde_json::Value;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A claim that is not renewed.
#[derive(Debug)]
struct OpenClaim(Task);

impl ClaimedTask for OpenClaim {
    fn task(&self) -> &Task {
        &self.0
    }

    fn time_left(&self) -> Option<Duration> {
        None
    }

    fn renew_every(&self) -> Duration {
        SECOND
    }

    fn renew(&mut self, _: Option<Value>, _: bool) -> BoxFuture<'_, Result<ClaimStatus>> {
        std::future::ready(Ok(ClaimStatus::Lost)).boxed()
    }

    fn finish(&mut self, _: Settlement) -> BoxFuture<'_, Result<Option<Task>>> {
        std::future::ready(Ok(None)).boxed()
    }
}

fn claimed() -> Box<dyn ClaimedTask> {
    let id = TaskId::from_random(7);
    let now = Now::exactly(StoreTime::from_millis(0));
    let context = StepContext { by: "producer".into(), now, write_id: HexName::from_random(7), random: 0 };
    let task = NewTask::new("resize", serde_json::json!(0)).unwrap();
    Box::new(OpenClaim(task.submitted(id, ShardLen::DEFAULT.shard_of(&id), &context)))
}

fn at(boot: Duration, wall: Duration) -> Instant {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap();
    Instant { boot_ns: nanos(boot), wall_ns: nanos(wall) }
}

/// The boot clock has missed four seconds, and the renewer wakes before the renewal is due by either clock.
#[test]
fn a_first_renewal_is_not_late_by_the_time_that_the_boot_clock_has_missed() {
    let renewals = Renewals::new();
    let run = RunHandle::new(claimed(), renewals.clone());
    let _entry = renewals.add(run, at(Duration::ZERO, Duration::ZERO), 10 * SECOND);
    let RenewerWork::Due(due, left) = renewals.take_due(at(5 * SECOND, 9 * SECOND)) else { panic!() };
    assert_eq!((due.len(), left), (0, Some(SECOND)));
    let RenewerWork::Due(due, left) = renewals.take_due(at(6 * SECOND, 10 * SECOND)) else { panic!() };
    assert_eq!((due.len(), left), (1, None));
}

/// The wall clock was set back.
#[test]
fn a_first_renewal_is_due_by_the_boot_clock_too() {
    let renewals = Renewals::new();
    let run = RunHandle::new(claimed(), renewals.clone());
    let _entry = renewals.add(run, at(Duration::ZERO, 100 * SECOND), 10 * SECOND);
    let RenewerWork::Due(due, left) = renewals.take_due(at(7 * SECOND, SECOND)) else { panic!() };
    assert_eq!((due.len(), left), (0, Some(3 * SECOND)));
    let RenewerWork::Due(due, _) = renewals.take_due(at(10 * SECOND, 4 * SECOND)) else { panic!() };
    assert_eq!(due.len(), 1);
}
