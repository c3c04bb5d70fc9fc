//! Handlers of the scenario: they succeed, fail, snooze, panic, or take longer than a lease.

use leasehold_store::{Host, HostExt};
use leasehold_worker::{Context, TaskError};
use std::sync::Arc;
use std::time::Duration;

use super::actors::{JournalActors, SECOND};
use super::checker::JournalChecker;
use crate::host::SimHost;
use crate::queue::actors::requested_failure;

impl JournalActors {
    /// One run of a handler.
    pub(super) async fn handle(self, host: Arc<SimHost>, context: Context) -> Result<u64, TaskError> {
        let run = match self.checker.begin(&context, host.process()) {
            Ok(run) => run,
            Err(wrong) => {
                self.alarm.raise(wrong);
                return Ok(0);
            }
        };
        let _guard = RunGuard { checker: self.checker.clone(), run };
        let most = if context.task().task_type.as_str() == "long" { self.pace.lease * 4 } else { SECOND * 2 };
        let until = self.checker.now() + host.random_below(most);
        loop {
            self.alarm.check(self.checker.check_running(run));
            if self.checker.now() >= until {
                break;
            }
            context.progress(host.random() % 100);
            host.sleep(SECOND.min(until.saturating_sub(self.checker.now()) + Duration::from_millis(1))).await;
        }
        if let Some(failure) = requested_failure(&context, &host) {
            return Err(failure);
        }
        self.checker.succeed(&context);
        Ok(context.epoch())
    }
}

/// Reports the end of a handler to the checker, also when it is dropped.
struct RunGuard {
    checker: JournalChecker,
    run: u64,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.checker.end(self.run);
    }
}
