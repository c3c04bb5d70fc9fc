use std::future::Future;
use std::time::Duration;

use futures::TryStreamExt;
use leasehold_store::testing::{
    Fault, FaultPlan, FaultyServer, Proxy, RequestCounts, RequestKind, SeaweedFs, Violations, once, pass,
};
use object_store::aws::AmazonS3;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutResult};
use tokio::sync::mpsc;

use super::client::{BUCKET, binary, client, create, is_missing, put, read, update};

/// Longer than any test: a request with this delay is never applied.
const NEVER: Duration = Duration::from_hours(1);

/// Proxy, with a client through it and another that connects directly to the server.
struct Scene {
    proxy: Proxy,
    via: AmazonS3,
    direct: AmazonS3,
}

async fn scene(upstream: &str, plan: FaultPlan) -> Scene {
    let proxy = Proxy::start(upstream, plan).await.unwrap();
    let via = client(&proxy.endpoint());
    Scene { proxy, via, direct: client(upstream) }
}

fn always(fault: Fault) -> FaultPlan {
    Box::new(move |_| fault.clone())
}

/// Plan with one fault for every request, and a channel that reports their arrival.
fn announced(fault: Fault) -> (FaultPlan, mpsc::UnboundedReceiver<u64>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let plan = Box::new(move |seen: &leasehold_store::testing::ObservedRequest| {
        sender.send(seen.index).unwrap();
        fault.clone()
    });
    (plan, receiver)
}

/// Polls the future until the request has arrived at the proxy, then drops it.
async fn give_up_after_arrival(
    call: impl Future<Output = object_store::Result<PutResult>>,
    mut arrivals: mpsc::UnboundedReceiver<u64>,
) {
    tokio::select! {
        result = call => panic!("no answer was expected but {result:?}"),
        index = arrivals.recv() => assert_eq!(index, Some(0)),
    }
}

/// True if the outcome of the request is unknown: there was no status.
fn is_transport_failure<T>(result: &object_store::Result<T>) -> bool {
    matches!(result, Err(error @ Error::Generic { .. }) if !error.to_string().contains("status code"))
}

async fn nothing_is_changed_and_all_is_counted(upstream: &str) {
    let Scene { proxy, via, .. } = scene(upstream, pass()).await;
    let first = create(&via, "pass/ä key+%&", "first").await.unwrap();
    let again = create(&via, "pass/ä key+%&", "again").await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    update(&via, "pass/ä key+%&", "second", &first).await.unwrap();
    assert_eq!(read(&via, "pass/ä key+%&").await.unwrap(), "second");
    assert_eq!(via.head(&"pass/ä key+%&".into()).await.unwrap().size, 6);
    let found: Vec<_> = via.list(Some(&"pass".into())).try_collect().await.unwrap();
    assert_eq!(found.len(), 1);
    via.delete(&"pass/ä key+%&".into()).await.unwrap();
    let expected = RequestCounts { put: 3, get: 1, list: 1, delete: 1, head: 1, other: 0 };
    assert_eq!(proxy.counts(), expected);
    assert_eq!(proxy.forwarded(), expected);
}

async fn the_plan_sees_the_request(upstream: &str) {
    let (sender, mut seen) = mpsc::unbounded_channel();
    let plan = Box::new(move |one: &leasehold_store::testing::ObservedRequest| {
        sender.send(one.clone()).unwrap();
        Fault::Pass
    });
    let Scene { proxy: _proxy, via, .. } = scene(upstream, plan).await;
    create(&via, "seen/key", "x").await.unwrap();
    put(&via, "seen/key", "y", PutMode::Overwrite).await.unwrap();
    let _: Vec<_> = via.list(Some(&"seen".into())).try_collect().await.unwrap();
    let [one, two, three] = [(); 3].map(|()| seen.try_recv().unwrap());
    assert_eq!((one.index, one.method.as_str(), one.path.as_str()), (0, "PUT", "/bucket-1/seen/key"));
    assert_eq!((one.kind, one.conditional), (RequestKind::Put, true));
    assert_eq!((two.index, two.kind, two.conditional), (1, RequestKind::Put, false));
    assert_eq!((three.index, three.kind), (2, RequestKind::List));
    assert!(three.query.contains("prefix=seen"), "{}", three.query);
}

async fn a_dropped_answer_was_applied(upstream: &str) {
    let Scene { proxy, via, direct } =
        scene(upstream, once(|seen| seen.conditional, Fault::DropAnswer)).await;
    put(&via, "answer/other", "x", PutMode::Overwrite).await.unwrap();
    let lost = create(&via, "answer/key", "first").await;
    assert!(is_transport_failure(&lost), "{lost:?}");
    assert_eq!(proxy.counts().put, 2, "the client must not retry");
    assert_eq!(read(&direct, "answer/key").await.unwrap(), "first");
    let again = create(&via, "answer/key", "again").await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
}

async fn a_dropped_request_was_not_applied(upstream: &str) {
    let Scene { proxy, via, direct } = scene(upstream, always(Fault::DropRequest)).await;
    let lost = create(&via, "request/key", "first").await;
    assert!(is_transport_failure(&lost), "{lost:?}");
    assert!(is_missing(&direct, "request/key").await);
    assert_eq!((proxy.counts().put, proxy.forwarded().put), (1, 0));
    proxy.set_plan(pass());
    create(&via, "request/key", "first").await.unwrap();
    assert_eq!((proxy.counts().put, proxy.forwarded().put), (2, 1));
}

async fn a_delayed_request_is_not_applied_before(upstream: &str) {
    let (plan, arrivals) = announced(Fault::Delay { before: NEVER, after: Duration::ZERO });
    let Scene { proxy, via, direct } = scene(upstream, plan).await;
    give_up_after_arrival(create(&via, "before/key", "first"), arrivals).await;
    assert_eq!((proxy.counts().put, proxy.forwarded().put), (1, 0));
    assert!(is_missing(&direct, "before/key").await);
}

async fn a_delayed_answer_was_applied_before(upstream: &str) {
    let (plan, arrivals) = announced(Fault::Delay { before: Duration::ZERO, after: NEVER });
    let Scene { proxy, via, direct } = scene(upstream, plan).await;
    give_up_after_arrival(create(&via, "after/key", "first"), arrivals).await;
    proxy.settled().await;
    assert_eq!(read(&direct, "after/key").await.unwrap(), "first");
}

async fn a_delay_ends(upstream: &str) {
    let wait = Duration::from_millis(50);
    let Scene { proxy: _proxy, via, .. } =
        scene(upstream, always(Fault::Delay { before: wait, after: wait })).await;
    let begun = std::time::Instant::now();
    create(&via, "delay/key", "first").await.unwrap();
    assert!(begun.elapsed() >= 2 * wait);
}

async fn what_the_client_gave_up_still_arrives(upstream: &str) {
    let (plan, arrivals) = announced(Fault::Delay { before: Duration::from_millis(50), after: NEVER });
    let Scene { proxy, via, direct } = scene(upstream, plan).await;
    give_up_after_arrival(create(&via, "given-up/key", "first"), arrivals).await;
    proxy.settled().await;
    assert_eq!(read(&direct, "given-up/key").await.unwrap(), "first");
}

async fn a_cut_answer_has_a_head_and_half_a_body(upstream: &str) {
    let Scene { proxy, via, direct } = scene(upstream, pass()).await;
    create(&via, "cut/key", "0123456789").await.unwrap();
    proxy.set_plan(always(Fault::CutAnswer));
    let answer = via.get(&"cut/key".into()).await.unwrap();
    assert_eq!(answer.meta.size, 10);
    let mut body = answer.into_stream();
    assert_eq!(body.try_next().await.unwrap().unwrap(), "01234");
    assert!(body.try_next().await.is_err());
    let lost = put(&via, "cut/key", "second", PutMode::Overwrite).await;
    assert!(is_transport_failure(&lost), "{lost:?}");
    assert_eq!(read(&direct, "cut/key").await.unwrap(), "second");
}

async fn an_own_answer_is_not_forwarded(upstream: &str) {
    let Scene { proxy, via, direct } = scene(upstream, always(Fault::error(503, "SlowDown"))).await;
    let slow = create(&via, "own/key", "first").await.unwrap_err().to_string();
    assert!(slow.contains("503") && slow.contains("<Code>SlowDown</Code>"), "{slow}");
    proxy.set_plan(always(Fault::error(409, "ConditionalRequestConflict")));
    let conflict = create(&via, "own/key", "first").await.unwrap_err().to_string();
    assert!(conflict.contains("ConditionalRequestConflict"), "{conflict}");
    proxy.set_plan(always(Fault::error(412, "PreconditionFailed")));
    let refused = create(&via, "own/key", "first").await;
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    assert_eq!((proxy.counts().put, proxy.forwarded().put), (3, 0));
    assert!(is_missing(&direct, "own/key").await);
}

async fn a_late_write_lands_after_the_client_gave_up(upstream: &str) {
    let Scene { proxy, via, direct } = scene(upstream, always(Fault::ApplyLate(NEVER))).await;
    let lost = create(&via, "late/key", "never").await;
    assert!(is_transport_failure(&lost), "{lost:?}");
    assert!(is_missing(&direct, "late/key").await);
    assert_eq!(proxy.forwarded().put, 0);
    proxy.stop().await;
    assert!(is_missing(&direct, "late/key").await);

    let Scene { proxy, via, direct } =
        scene(upstream, always(Fault::ApplyLate(Duration::from_millis(50)))).await;
    let lost = create(&via, "late/key", "first").await;
    assert!(is_transport_failure(&lost), "{lost:?}");
    proxy.settled().await;
    assert_eq!(read(&direct, "late/key").await.unwrap(), "first");
    assert_eq!((proxy.counts().put, proxy.forwarded().put), (1, 1));
}

async fn many_requests_at_once_are_all_counted(upstream: &str) {
    let Scene { proxy, via, .. } = scene(upstream, pass()).await;
    let races = (0..32).map(|_| create(&via, "race/key", "mine"));
    let won = futures::future::join_all(races).await.into_iter().flatten().count();
    assert_eq!((won, proxy.counts().put, proxy.forwarded().put), (1, 32, 32));
}

async fn all(upstream: &str) {
    nothing_is_changed_and_all_is_counted(upstream).await;
    the_plan_sees_the_request(upstream).await;
    a_dropped_answer_was_applied(upstream).await;
    a_dropped_request_was_not_applied(upstream).await;
    a_delayed_request_is_not_applied_before(upstream).await;
    a_delayed_answer_was_applied_before(upstream).await;
    a_delay_ends(upstream).await;
    what_the_client_gave_up_still_arrives(upstream).await;
    a_cut_answer_has_a_head_and_half_a_body(upstream).await;
    an_own_answer_is_not_forwarded(upstream).await;
    a_late_write_lands_after_the_client_gave_up(upstream).await;
    many_requests_at_once_are_all_counted(upstream).await;
}

#[tokio::test]
async fn every_fault_works_before_the_server_in_memory() {
    let server = FaultyServer::start(Violations::default()).await.unwrap();
    all(&server.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_works_before_the_real_server() {
    let server = SeaweedFs::start(&binary()).await.unwrap();
    server.create_bucket(BUCKET).await.unwrap();
    all(&server.endpoint()).await;
}

#[tokio::test]
async fn the_proxy_stays_while_the_server_restarts() {
    let mut server = SeaweedFs::start(&binary()).await.unwrap();
    server.create_bucket(BUCKET).await.unwrap();
    let Scene { proxy: _proxy, via, .. } = scene(&server.endpoint(), pass()).await;
    create(&via, "a/key", "first").await.unwrap();
    server.kill();
    let lost = read(&via, "a/key").await;
    assert!(is_transport_failure(&lost), "{lost:?}");
    server.restart().await.unwrap();
    assert_eq!(read(&via, "a/key").await.unwrap(), "first");
}

#[tokio::test]
async fn an_answer_without_a_date_gets_none() {
    for no_date in [false, true] {
        let server = FaultyServer::start(Violations { no_date, ..Violations::default() }).await.unwrap();
        let proxy = Proxy::start(&server.endpoint(), pass()).await.unwrap();
        assert_ne!(
            super::faulty_server::raw(&proxy.endpoint()).await.headers().contains_key("date"),
            no_date
        );
        proxy.set_plan(always(Fault::error(503, "SlowDown")));
        assert!(super::faulty_server::raw(&proxy.endpoint()).await.headers().contains_key("date"));
    }
}

#[tokio::test]
async fn a_stopped_proxy_is_gone() {
    let server = FaultyServer::start(Violations::default()).await.unwrap();
    let Scene { proxy, via, .. } = scene(&server.endpoint(), pass()).await;
    create(&via, "a/key", "first").await.unwrap();
    proxy.stop().await;
    // A refused connection is not guaranteed: a process that a concurrent test is starting holds a copy of the port
    // for a moment.
    assert!(read(&via, "a/key").await.is_err());
}

#[tokio::test]
async fn an_invalid_address_is_refused() {
    assert!(Proxy::start("/no/host", pass()).await.is_err());
}
