//! Access control over the network.

use leasehold_core::Kind;
use leasehold_web::{Dashboard, WebOptions};
use serde_json::json;

use crate::fixture::{DashboardFixture, TOKEN, options, queue};

const PATHS: [&str; 9] = [
    "/api/overview",
    "/api/tasks",
    "/api/tasks/3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3",
    "/api/workers",
    "/api/shards",
    "/api/artifacts",
    "/api/outposts",
    "/api/settings",
    "/metrics",
];

#[tokio::test]
async fn an_address_reachable_from_other_machines_needs_a_token() {
    for addr in ["0.0.0.0:0", "[::]:0", "10.0.0.5:0"] {
        let addr = addr.parse().unwrap();
        let error =
            Dashboard::bind(queue().await.into(), WebOptions { addr, ..options() }).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("--token"), "{error}");
    }
}

#[tokio::test]
async fn without_the_token_no_data_of_the_queue_is_served() {
    let fixture = DashboardFixture::guarded().await;
    let right = format!("authorization: Bearer {TOKEN}");
    for path in PATHS {
        for wrong in
            [&[][..], &["authorization: Bearer open-sesam"], &["authorization: Bearer"], &["x-leasehold: 1"]]
        {
            let answer = fixture.request("GET", path, wrong).await;
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, Some("Bearer")),
                "{path} {wrong:?}"
            );
            assert!(!answer.text().contains(TOKEN));
        }
        assert_ne!(fixture.request("GET", path, &[&right]).await.status, 401, "{path}");
    }
    let id = fixture.submit("a", json!(1)).await;
    let answer = fixture.post(&format!("/api/tasks/{id}/cancel"), "").await;
    assert_eq!(answer.status, 401, "no change either");
    assert_eq!(fixture.queue.get(&id).await.unwrap().status().name(), "pending");
    for open in ["/", "/static/app.js", "/healthz"] {
        assert_eq!(fixture.get(open).await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn a_token_makes_the_name_of_the_host_irrelevant() {
    let fixture = DashboardFixture::guarded().await;
    let right = format!("authorization: Bearer {TOKEN}");
    let answer = fixture.request("GET", "/api/settings", &["host: queue.example.com", &right]).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_foreign_name_that_resolves_to_this_machine_is_rejected() {
    let fixture = DashboardFixture::new().await;
    for path in PATHS.into_iter().chain(["/"]) {
        let answer = fixture.request("GET", path, &["host: evil.example:7423"]).await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.error().contains("127.0.0.1"));
    }
    assert_eq!(fixture.request("GET", "/api/settings", &["host: localhost:7423"]).await.status, 200);
}

#[tokio::test]
async fn changes_from_other_pages_are_rejected() {
    let fixture = DashboardFixture::new().await;
    let id = fixture.submit("a", json!(1)).await;
    let path = format!("/api/tasks/{id}/cancel");
    for foreign in [
        &[][..],
        &["origin: http://evil.example"],
        &["x-leasehold: 1", "origin: http://evil.example"],
        &["x-leasehold: 1", "origin: null"],
        &["x-leasehold: 1", "sec-fetch-site: cross-site"],
        &["x-leasehold: 1", "sec-fetch-site: same-site"],
        &["x-leasehold: yes"],
        &["content-type: application/x-www-form-urlencoded"],
    ] {
        let answer = fixture.request("POST", &path, foreign).await;
        assert_eq!(answer.status, 403, "{foreign:?}");
        let all = fixture.request_with_body("POST", "/api/tasks/cancel", foreign, "{}").await;
        assert_eq!(all.status, 403, "{foreign:?}");
    }
    // The preflight request of a browser for a foreign header.
    let before = ["origin: http://evil.example", "access-control-request-headers: x-leasehold"];
    let answer = fixture.request("OPTIONS", &path, &before).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
    assert_eq!(fixture.queue.get(&id).await.unwrap().status().name(), "pending");
    assert_eq!(fixture.post(&path, "").await.status, 200);
}

#[tokio::test]
async fn a_read_only_dashboard_changes_nothing() {
    let fixture = DashboardFixture::with(WebOptions { allows_actions: false, ..options() }).await;
    let id = fixture.submit("a", json!(1)).await;
    fixture.until_read().await;
    for path in [
        format!("/api/tasks/{id}/cancel"),
        format!("/api/tasks/{id}/retry"),
        format!("/api/tasks/{id}/run_now"),
        "/api/tasks/cancel".into(),
        "/api/tasks/retry".into(),
    ] {
        let answer = fixture.post(&path, "{}").await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.error().contains("--allow-actions"));
    }
    assert_eq!(fixture.queue.get(&id).await.unwrap().status().name(), "pending");
    assert_eq!(fixture.get(&format!("/api/tasks/{id}")).await.json()["can"], json!([]));
    assert_eq!(fixture.get("/api/overview").await.json()["allow_actions"], false);
}

#[tokio::test]
async fn every_response_has_the_security_headers() {
    let fixture = DashboardFixture::new().await;
    let answers = [
        fixture.get("/").await,
        fixture.get("/api/overview").await,
        fixture.get("/api/tasks/x").await,
        fixture.get("/nothing").await,
        fixture.get("/metrics").await,
        fixture.request("POST", "/api/tasks/cancel", &[]).await,
    ];
    for answer in answers {
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"));
        assert!(policy.contains("frame-ancestors 'none'"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
}

#[tokio::test]
async fn cross_site_reads_are_rejected() {
    let fixture = DashboardFixture::new().await;
    for path in ["/api/overview", "/metrics", "/api/tasks/00000000-0000-4000-8000-000000000000"] {
        for site in ["cross-site", "same-site"] {
            let header = format!("sec-fetch-site: {site}");
            assert_eq!(fixture.request("GET", path, &[&header]).await.status, 403, "{path} {site}");
        }
    }
    assert_eq!(
        fixture.request("GET", "/", &["sec-fetch-site: cross-site"]).await.status,
        200,
        "a link to the page"
    );
}
