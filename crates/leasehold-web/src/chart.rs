//! Charts of the last hour by minute, derived from task records: the past is available as soon as the tasks have been
//! read, and not only since the page was opened.

use leasehold_core::{Minute, Status, StoreTime};
use serde::Serialize;
use std::time::Duration;

use crate::table::Row;

/// Number of minutes.
pub(crate) const MINUTES: usize = 60;

/// Values of each minute.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Chart {
    /// Start of the first minute.
    start: StoreTime,
    completed: Vec<u64>,
    failed: Vec<u64>,
    submitted: Vec<u64>,
    /// Median time until the first claim, of the tasks that finished in a minute.
    waiting_secs_p50: Vec<Option<f64>>,
    /// Median duration of the last attempt, of the tasks that finished in a minute.
    run_secs_p50: Vec<Option<f64>>,
}

/// Builder of a chart.
pub(crate) struct ChartBuilder {
    start: StoreTime,
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    completed: u64,
    failed: u64,
    submitted: u64,
    waited: Vec<Duration>,
    ran: Vec<Duration>,
}

impl ChartBuilder {
    /// Creates the slots of the hour that ends with this minute.
    pub(crate) fn until(now: StoreTime) -> Self {
        let start = Minute::of(now).start().minus(Duration::from_mins(MINUTES as u64 - 1));
        Self { start, slots: vec![Slot::default(); MINUTES] }
    }

    fn at(&mut self, time: StoreTime) -> Option<&mut Slot> {
        let minute = time.as_millis().checked_sub(self.start.as_millis())?.div_euclid(60_000);
        self.slots.get_mut(usize::try_from(minute).ok()?)
    }

    pub(crate) fn add(&mut self, row: &Row) {
        if let Some(slot) = self.at(row.created_at) {
            slot.submitted += 1;
        }
        let Some(slot) = row.finished_at.and_then(|at| self.at(at)) else { return };
        match row.status {
            Status::Completed => slot.completed += 1,
            Status::Failed => slot.failed += 1,
            _ => return,
        }
        slot.waited.extend(row.waited);
        slot.ran.extend(row.ran);
    }

    pub(crate) fn chart(mut self) -> Chart {
        let slots = &mut self.slots;
        Chart {
            start: self.start,
            waiting_secs_p50: slots.iter_mut().map(|slot| median(&mut slot.waited)).collect(),
            run_secs_p50: slots.iter_mut().map(|slot| median(&mut slot.ran)).collect(),
            completed: slots.iter().map(|slot| slot.completed).collect(),
            failed: slots.iter().map(|slot| slot.failed).collect(),
            submitted: slots.iter().map(|slot| slot.submitted).collect(),
        }
    }
}

/// Median, in seconds.
fn median(times: &mut [Duration]) -> Option<f64> {
    let half = times.len() / 2;
    (!times.is_empty()).then(|| times.select_nth_unstable(half).1.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_is_the_current_minute() {
        let now = StoreTime::from_millis(1_700_000_059_999);
        let mut slots = ChartBuilder::until(now);
        let index = |slots: &mut ChartBuilder, time| {
            slots.at(time).map(|slot| slot.submitted += 1).and_then(|()| {
                let hit = slots.slots.iter().position(|slot| slot.submitted == 1);
                slots.slots.iter_mut().for_each(|slot| slot.submitted = 0);
                hit
            })
        };
        assert_eq!(index(&mut slots, now), Some(59));
        assert_eq!(index(&mut slots, now.minus(Duration::from_mins(59))), Some(0));
        assert_eq!(index(&mut slots, now.minus(Duration::from_hours(1))), None);
        assert_eq!(index(&mut slots, now.plus(Duration::from_mins(1))), None);
    }

    #[test]
    fn the_median_is_the_middle_value() {
        let mut times: Vec<_> = [9, 1, 5].map(Duration::from_secs).into();
        assert_eq!(median(&mut times), Some(5.0));
        assert_eq!(median(&mut []), None);
    }
}
