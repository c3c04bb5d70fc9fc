//! A timer in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::executor::Executor;

/// Waits for a moment of virtual time; dropping it removes the timer.
#[derive(Debug)]
pub struct Sleep {
    executor: Executor,
    until: Duration,
    /// Position of its timer, and the waker it was set for.
    timer: Option<((Duration, u64), Waker)>,
}

impl Sleep {
    pub(crate) fn until(executor: Executor, until: Duration) -> Self {
        Self { executor, until, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.executor.now() >= self.until {
            return Poll::Ready(());
        }
        let wanted = context.waker();
        match &self.timer {
            Some((_, known)) if known.will_wake(wanted) => {}
            Some((place, _)) => {
                self.executor.change_timer(*place, Some(wanted.clone()));
                self.timer = Some((*place, wanted.clone()));
            }
            None => {
                let place = self.executor.set_timer(self.until, wanted.clone());
                self.timer = Some((place, wanted.clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((place, _)) = self.timer.take() {
            self.executor.change_timer(place, None);
        }
    }
}
