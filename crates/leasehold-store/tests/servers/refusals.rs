//! Servers that do not meet the requirements are refused, each with a message that says what to do.

use leasehold_core::Kind;
use leasehold_store::testing::{Fault, FaultyServer, Proxy, Violations, once};
use leasehold_store::{AccessKey, Client, Purpose, PutOutcome, When, open};
use std::time::Duration;

use crate::{client, host, options, weed};

async fn verdict(violations: Violations) -> leasehold_core::Error {
    let server = FaultyServer::start(violations).await.unwrap();
    let client = client(&server.endpoint(), "").with_timeout(Duration::from_millis(200));
    match leasehold_store::probe(&client).await {
        Ok(report) => report.verdict().expect_err("it was accepted"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_correct_server_is_accepted() {
    let server = FaultyServer::start(Violations::default()).await.unwrap();
    let report = leasehold_store::probe(&client(&server.endpoint(), "")).await.unwrap();
    report.verdict().unwrap();
}

#[tokio::test]
async fn servers_that_ignore_conditions_are_refused() {
    let both_win =
        "two writers would both succeed, and tasks would run twice or be lost; use a store that does";
    for (violations, demand) in [
        (
            Violations { ignore_if_none_match: true, ..Violations::default() },
            "refuse to create an existing object (if-none-match)",
        ),
        (
            Violations { ignore_if_match: true, ..Violations::default() },
            "refuse to replace a changed object (if-match)",
        ),
    ] {
        let error = verdict(violations).await;
        assert_eq!(error.to_string(), format!("s3://tasks does not {demand}: {both_win}"));
        assert_eq!(error.kind(), Kind::Invalid);
    }
}

#[tokio::test]
async fn servers_that_list_late_or_send_no_date_are_refused() {
    let error = verdict(Violations { stale_lists: true, ..Violations::default() }).await;
    assert!(error.to_string().contains("list new objects at once"), "{error}");
    let error = verdict(Violations { no_date: true, ..Violations::default() }).await;
    assert!(error.to_string().contains("send a date with its answers"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_named() {
    let endpoint = weed().await.endpoint();
    let store = open("s3://no-such-bucket/q", &options(&endpoint), &host()).unwrap();
    let error = leasehold_store::probe(&Client::new(store, host())).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("bucket `no-such-bucket` does not exist at {endpoint}; create it or check its name")
    );
    assert_eq!(error.kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_missing_bucket_is_named_when_the_server_says_no_more_than_404() {
    let server =
        FaultyServer::start(Violations { bare_not_found: true, ..Violations::default() }).await.unwrap();
    let client = client(&server.endpoint(), "q").with_timeout(Duration::from_millis(200));
    let endpoint = server.endpoint();
    let message = format!("bucket `tasks` does not exist at {endpoint}; create it or check its name");
    let error = leasehold_store::probe(&client).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (Kind::Invalid, message.clone()));
    for when in [When::Absent, When::Always] {
        let error = match &when {
            When::Always => client.put_always(Purpose::Admin, "k", "one".into()).await.unwrap_err(),
            _ => client.put(Purpose::Admin, "k", "one".into(), &when).await.unwrap_err(),
        };
        assert_eq!((error.to_string(), error.outcome_is_unknown()), (message.clone(), false));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused_at_once() {
    let mut options = options(&weed().await.endpoint());
    options.access_key = Some(AccessKey { id: "test".into(), secret: "not the secret".into() });
    let client = Client::new(open("s3://tasks/q", &options, &host()).unwrap(), host());
    let error = leasehold_store::probe(&client).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert_eq!(client.ledger().snapshot().requests(), 1, "a retry does not help");
    assert!(!format!("{error:?}").contains("not the secret"), "the message contains the secret");
}

#[tokio::test]
async fn the_reason_of_a_refusal_is_named() {
    let server = FaultyServer::start(Violations::default()).await.unwrap();
    let portal = Fault::Answer { status: 200, body: "<html></html>".into() };
    for (fault, kind, reason) in [
        (Fault::error(403, "AccessDenied"), Kind::Denied, "check them and their permissions"),
        (Fault::error(400, "ExpiredToken"), Kind::Denied, "which have expired; renew them"),
        (portal, Kind::Invalid, "check for a proxy that answers instead"),
    ] {
        let proxy = Proxy::start(&server.endpoint(), Box::new(move |_| fault.clone())).await.unwrap();
        let error = client(&proxy.endpoint(), "q").get(Purpose::Admin, "k").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = client(&format!("http://{free}"), "q").with_timeout(Duration::from_millis(300));
    let error = leasehold_store::probe(&client).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(
        error.to_string(),
        format!("s3://tasks/q cannot be reached at http://{free}; check the address and the network")
    );
}

#[tokio::test]
async fn the_librarys_own_retries_are_off() {
    // With them on, this put would be retried after the 500, be refused because of its own first attempt, and
    // return as a lost race.
    let server = FaultyServer::start(Violations::default()).await.unwrap();
    let fault = Fault::error(500, "InternalError");
    let proxy = Proxy::start(&server.endpoint(), once(|seen| seen.conditional, fault)).await.unwrap();
    let client = client(&proxy.endpoint(), "q");
    let put = client.put(Purpose::Admin, "k", "one".into(), &When::Absent).await.unwrap();
    assert!(matches!(put, PutOutcome::Written(_)));
    let (seen, ledger) = (proxy.counts(), client.ledger().snapshot());
    assert_eq!((seen.put, seen.get), (2, 1), "put, read back, put again");
    assert_eq!(ledger.requests(), 3);
}
