//! Tasks for the tests of this crate.

use serde_json::json;
use std::time::Duration;

use crate::ids::{HexName, Name, TaskId};
use crate::new_task::NewTask;
use crate::shard::ShardLen;
use crate::step::{Event, StepContext, step};
use crate::task::Task;
use crate::time::{Now, StoreTime};

pub(crate) fn now() -> Now {
    Now::exactly(StoreTime::from_millis(1_700_000_000_000))
}

pub(crate) fn context_at(now: Now) -> StepContext {
    StepContext { by: "tester".into(), now, write_id: HexName::from_random(1), random: u64::MAX / 2 }
}

pub(crate) fn lease(number: u128) -> HexName {
    HexName::from_random(number)
}

pub(crate) fn claim(number: u128) -> Event {
    let worker = Name::checked("worker id", "w1").unwrap();
    Event::Claim { worker, lease_id: lease(number), lease: Duration::from_mins(1) }
}

pub(crate) fn pending() -> Task {
    let id = TaskId::from_random(7);
    let order = NewTask::new("resize", json!({"url": "x", "size": 3})).unwrap();
    order.submitted(id, ShardLen::DEFAULT.shard_of(&id), &context_at(now()))
}

pub(crate) fn running() -> Task {
    step(&pending(), &claim(1), &context_at(now())).unwrap().task
}
