//! Time: answers have dates, and the modification times in lists use the same clock.

use bytes::Bytes;
use futures::FutureExt;
use std::time::Duration;

use super::{Check, Checked, Suite, failed};
use crate::ledger::Purpose::Admin;
use crate::store::List;

pub(super) const CHECKS: &[Check] =
    &[("modification times are in store time", |suite| modification_times(suite).boxed())];

/// Tolerance: modification times may have whole seconds, and hosts of one store may differ.
const STAMP_SLACK: Duration = Duration::from_millis(1_500);

async fn modification_times(suite: &Suite) -> Checked {
    let key = suite.key("times/x");
    let put = suite.client.put_always(Admin, &key, Bytes::from_static(b"x")).await;
    put.map_err(failed)?;
    let before = suite.client.now().ok_or("no answer was dated")?;
    let page = suite.client.list(Admin, &List::all(suite.key("times/"))).await.map_err(failed)?;
    let after = suite.client.now().ok_or("no answer was dated")?;
    let modified = page.entries.first().ok_or("the object is not listed")?.modified;
    let earliest = before.earliest.minus(STAMP_SLACK);
    let latest = after.latest.plus(STAMP_SLACK);
    if earliest <= modified && modified <= latest {
        Ok(())
    } else {
        Err(format!("the modification time {modified} is not between {earliest} and {latest}"))
    }
}
