use std::collections::BTreeSet;

use futures::TryStreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use leasehold_store::testing::{FaultyServer, Proxy, Violations, pass};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode};

use super::client::{BUCKET, builder, client, create, is_missing, put, read, update};

async fn start(violations: Violations) -> FaultyServer {
    FaultyServer::start(violations).await.unwrap()
}

async fn keys(store: &impl ObjectStore, prefix: Option<&str>) -> Vec<String> {
    let found = store.list(prefix.map(Into::into).as_ref());
    found.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap()
}

#[tokio::test]
async fn a_correct_server_checks_conditions() {
    let server = start(Violations::default()).await;
    let store = client(&server.endpoint());
    let missing =
        update(&store, "a/key", "x", &put(&store, "other", "x", PutMode::Overwrite).await.unwrap()).await;
    // The server answers 404, as AWS does; the client maps it to this.
    assert!(matches!(missing, Err(Error::Precondition { .. })), "{missing:?}");
    let first = create(&store, "a/key", "first").await.unwrap();
    let again = create(&store, "a/key", "again").await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    let second = update(&store, "a/key", "second", &first).await.unwrap();
    let stale = update(&store, "a/key", "third", &first).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
    assert_eq!(read(&store, "a/key").await.unwrap(), "second");
    let known = GetOptions { if_none_match: second.e_tag, ..GetOptions::default() };
    let unchanged = store.get_opts(&"a/key".into(), known).await;
    assert!(matches!(unchanged, Err(Error::NotModified { .. })));
    assert_eq!(store.head(&"a/key".into()).await.unwrap().size, 6);
    assert_eq!(store.get_range(&"a/key".into(), 1..3).await.unwrap(), "ec");
    store.delete(&"a/key".into()).await.unwrap();
    assert!(is_missing(&store, "a/key").await);
}

#[tokio::test]
async fn equal_bytes_have_equal_tags() {
    let server = start(Violations::default()).await;
    let store = client(&server.endpoint());
    let one = create(&store, "one", "same").await.unwrap();
    let two = create(&store, "two", "same").await.unwrap();
    let other = create(&store, "other", "else").await.unwrap();
    assert_eq!(one.e_tag, two.e_tag);
    assert_ne!(one.e_tag, other.e_tag);
}

#[tokio::test]
async fn ignored_conditions_overwrite() {
    let server =
        start(Violations { ignore_if_none_match: true, ignore_if_match: true, ..Violations::default() })
            .await;
    let store = client(&server.endpoint());
    let first = create(&store, "a/key", "first").await.unwrap();
    create(&store, "a/key", "second").await.unwrap();
    update(&store, "a/key", "third", &first).await.unwrap();
    assert_eq!(read(&store, "a/key").await.unwrap(), "third");
}

#[tokio::test]
async fn each_condition_is_ignored_by_itself() {
    let server = start(Violations { ignore_if_match: true, ..Violations::default() }).await;
    let store = client(&server.endpoint());
    let first = create(&store, "a/key", "first").await.unwrap();
    assert!(create(&store, "a/key", "second").await.is_err());
    update(&store, "a/key", "second", &first).await.unwrap();
    update(&store, "a/key", "third", &first).await.unwrap();

    let server = start(Violations { ignore_if_none_match: true, ..Violations::default() }).await;
    let store = client(&server.endpoint());
    let first = create(&store, "a/key", "first").await.unwrap();
    create(&store, "a/key", "second").await.unwrap();
    assert!(update(&store, "a/key", "third", &first).await.is_err());
}

#[tokio::test]
async fn racing_creators_have_one_winner() {
    let server = start(Violations::default()).await;
    let store = client(&server.endpoint());
    let races = (0..16).map(|_| create(&store, "a/key", "mine"));
    let won = futures::future::join_all(races).await.into_iter().flatten().count();
    assert_eq!(won, 1);
}

#[tokio::test]
async fn lists_support_prefix_start_pages_and_delimiter() {
    let server = start(Violations::default()).await;
    let store = client(&server.endpoint());
    for key in ["a/1", "a/2", "a/b/3", "a/b/4", "a/c&d/5", "b/6"] {
        create(&store, key, "x").await.unwrap();
    }
    assert_eq!(keys(&store, None).await.len(), 6);
    assert_eq!(keys(&store, Some("a")).await, ["a/1", "a/2", "a/b/3", "a/b/4", "a/c&d/5"]);
    let after = store.list_with_offset(Some(&"a".into()), &"a/2".into());
    let after: Vec<_> = after.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
    assert_eq!(after, ["a/b/3", "a/b/4", "a/c&d/5"]);
    let folder = store.list_with_delimiter(Some(&"a".into())).await.unwrap();
    let objects: Vec<_> = folder.objects.iter().map(|meta| meta.location.as_ref()).collect();
    let prefixes: Vec<_> = folder.common_prefixes.iter().map(AsRef::as_ref).collect();
    assert_eq!(objects, ["a/1", "a/2"]);
    assert_eq!(prefixes, ["a/b", "a/c&d"]);
}

#[tokio::test]
async fn many_objects_are_deleted_by_one_request() {
    let server = start(Violations::default()).await;
    let proxy = Proxy::start(&server.endpoint(), pass()).await.unwrap();
    let store = builder(&proxy.endpoint(), BUCKET).build().unwrap();
    for key in ["a/1", "a/2&3", "b"] {
        create(&store, key, "x").await.unwrap();
    }
    let paths = ["a/1", "a/2&3", "none"].map(|key| Ok(key.into()));
    store.delete_stream(Box::pin(futures::stream::iter(paths))).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(proxy.counts().delete, 1);
    assert_eq!(keys(&store, None).await, ["b"]);
}

#[tokio::test]
async fn pages_show_everything_once() {
    let server = start(Violations::default()).await;
    let store = client(&server.endpoint());
    for key in ["a/1", "a/b/2", "a/b/3", "a/c", "a/d/4", "a/e"] {
        create(&store, key, "x").await.unwrap();
    }
    for delimiter in [None, Some("/".into())] {
        let mut shown = Vec::new();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                page_token,
                max_keys: Some(1),
                delimiter: delimiter.clone(),
                ..PaginatedListOptions::default()
            };
            let page = store.list_paginated(Some("a/"), options).await.unwrap();
            shown.extend(page.result.objects.iter().map(|meta| meta.location.to_string()));
            shown.extend(page.result.common_prefixes.iter().map(ToString::to_string));
            page_token = page.page_token;
            if page_token.is_none() {
                break;
            }
        }
        let expected = if delimiter.is_some() { 5 } else { 6 };
        assert_eq!(shown.len(), expected, "{shown:?}");
        assert_eq!(shown.iter().collect::<BTreeSet<_>>().len(), expected, "{shown:?}");
    }
}

#[tokio::test]
async fn stale_lists_show_a_write_one_list_later() {
    let server = start(Violations { stale_lists: true, ..Violations::default() }).await;
    let store = client(&server.endpoint());
    create(&store, "a/key", "first").await.unwrap();
    assert_eq!(keys(&store, None).await, [""; 0]);
    assert_eq!(keys(&store, None).await, ["a/key"]);
    assert_eq!(read(&store, "a/key").await.unwrap(), "first");
}

#[tokio::test]
async fn refusals_have_the_errors_of_s3() {
    let denying = start(Violations { deny_all: true, ..Violations::default() }).await;
    let denied = read(&client(&denying.endpoint()), "a/key").await;
    assert!(matches!(&denied, Err(Error::PermissionDenied { .. })), "{denied:?}");
    let empty = start(Violations { no_bucket: true, ..Violations::default() }).await;
    let missing = create(&client(&empty.endpoint()), "a/key", "x").await.unwrap_err();
    assert!(missing.to_string().contains("NoSuchBucket"), "{missing}");
}

pub(crate) async fn raw(endpoint: &str) -> Response<Incoming> {
    let request = Request::get(format!("{endpoint}/bucket-1/none")).body(Empty::<Bytes>::new()).unwrap();
    Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap()
}

#[tokio::test]
async fn answers_have_a_date_unless_configured_otherwise() {
    let dated = start(Violations::default()).await;
    let answer = raw(&dated.endpoint()).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert!(answer.headers().contains_key("date"));
    let undated = start(Violations { no_date: true, ..Violations::default() }).await;
    assert!(!raw(&undated.endpoint()).await.headers().contains_key("date"));
}

#[tokio::test]
async fn a_stopped_server_is_gone() {
    let server = start(Violations::default()).await;
    let store = client(&server.endpoint());
    create(&store, "a/key", "first").await.unwrap();
    server.stop().await;
    assert!(read(&store, "a/key").await.is_err());
}
