//! Store time from a real server's answers, on hosts with wrong wall clocks.

use futures::future::BoxFuture;
use leasehold_store::host::{Instant, Running};
use leasehold_store::testing::{Proxy, pass};
use leasehold_store::{Client, Host, Purpose, SystemHost, open};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use crate::{options, weed};

/// This machine with a wall clock that is off and can jump.
#[derive(Debug, Default)]
struct SkewedHost {
    off_secs: AtomicI64,
}

impl Host for SkewedHost {
    fn instant(&self) -> Instant {
        let honest = SystemHost.instant();
        Instant { wall_ns: honest.wall_ns + self.off_secs.load(Relaxed) * 1_000_000_000, ..honest }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemHost.sleep(duration)
    }

    fn random(&self) -> u64 {
        SystemHost.random()
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }

    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn_thread(name, work)
    }
}

/// The server runs on this machine: its time is the machine's.
fn truth_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

fn assert_contains_truth(client: &Client) {
    let before = truth_ms();
    let now = client.now().unwrap();
    assert!(
        now.earliest.as_millis() <= truth_ms() && before <= now.latest.as_millis(),
        "{before} not in {now:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_is_wrong_or_jumps_changes_nothing() {
    const YEAR: i64 = 365 * 86_400;
    let proxy = Proxy::start(&weed().await.endpoint(), pass()).await.unwrap();
    let host = Arc::new(SkewedHost::default());
    host.off_secs.store(-YEAR, Relaxed);
    let as_host: Arc<dyn Host> = host.clone();
    let client =
        Client::new(open("s3://tasks/time", &options(&proxy.endpoint()), &as_host).unwrap(), as_host);
    for round in 0..60 {
        client.get(Purpose::Admin, "nothing").await.unwrap();
        assert_contains_truth(&client);
        if round == 30 {
            host.off_secs.store(YEAR, Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let width = client.now().unwrap().width().unwrap();
    assert!(width < Duration::from_millis(1_300), "still {width:?} wide after three seconds of answers");
    // Reading the time costs no request.
    let requests = proxy.counts();
    for _ in 0..1_000 {
        assert_contains_truth(&client);
    }
    assert_eq!(proxy.counts(), requests);
}
