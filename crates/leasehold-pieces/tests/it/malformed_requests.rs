//! Requests that our own clients never send.

use leasehold_http::testing::{RawConnection, exchange, status_of};
use leasehold_pieces::serve::ServeOptions;

use crate::test_server::{TestServer, TestSource, artifact};

/// Paths that must be rejected; `{}` stands for a valid hash.
fn tricks() -> Vec<String> {
    let hash = artifact().as_str().to_owned();
    let mut paths: Vec<String> = [
        "/",
        "//",
        "*",
        "/v1",
        "/v1/",
        "/v2/{}/have",
        "/v1//have",
        "/v1/{}",
        "/v1/{}/",
        "/v1/{}/have/",
        "//v1/{}/have",
        "/v1//{}/have",
        "/v1/{}//have",
        "/v1/{}/have?x=1",
        "/v1/{}/have?",
        "/V1/{}/have",
        "/v1/{}/HAVE",
        "/v1/{}/data",
        "/v1/{}/manifest.json",
        "/v1/../v1/{}/have",
        "/v1/./{}/have",
        "/v1/{}/../{}/have",
        "/v1/{}/pieces/../have",
        "/v1/%2e%2e/{}/have",
        "/v1/{}%2fhave",
        "/v1/{}/%68ave",
        "/v1/..%2f..%2fetc%2fpasswd/have",
        "/../../etc/passwd",
        "/v1/../../../../etc/passwd",
        "/v1/{}/pieces/../../../../etc/passwd",
        "/v1/%00/have",
        "/v1/{}%00/have",
        "/v1/{}\0/have",
        "/v1/{}/have\0",
        "/v1/{}\t/have",
        "/v1/\u{fc}/have",
        "/v1/{}/pieces",
        "/v1/{}/pieces/",
        "/v1/{}/pieces/-",
        "/v1/{}/pieces/-1",
        "/v1/{}/pieces/1-",
        "/v1/{}/pieces/+1",
        "/v1/{}/pieces/01",
        "/v1/{}/pieces/1-1",
        "/v1/{}/pieces/2-1",
        "/v1/{}/pieces/0-1-2",
        "/v1/{}/pieces/0x1",
        "/v1/{}/pieces/1e1",
        "/v1/{}/pieces/1.0",
        "/v1/{}/pieces/%31",
        "/v1/{}/pieces/1/",
        "/v1/{}/pieces/1/2",
        "/v1/{}/pieces/65536",
        "/v1/{}/pieces/0-65537",
        "/v1/{}/pieces/4294967295",
        "/v1/{}/pieces/4294967296",
        "/v1/{}/pieces/18446744073709551616",
        "/v1/{}/pieces/0-99999999999999999999999999999999999999999",
        "/v1/{}/pieces/\u{0661}",
        "/v1/sha256-/have",
        "/v1/sha256-{}x/have",
        "/v1/sha512-{}/have",
        "/v1/x{}/have",
        "/healthz/",
        "/healthz/..",
        "/healthz?",
        "healthz",
        "v1/{}/have",
    ]
    .map(|path| path.replace("{}", &hash))
    .into();
    paths.push(format!("/v1/{}/have", hash.to_uppercase()));
    paths.push(format!("/v1/{}/have", &hash[1..]));
    paths.push(format!("/v1/{}g/have", &hash[1..]));
    for long in [200, 10_000, 70_000, 1_000_000] {
        paths.push(format!("/v1/{hash}/{}", "a".repeat(long)));
        paths.push(format!("/v1/{}/have", "a".repeat(long)));
        paths.push("/..".repeat(long / 3));
    }
    paths
}

#[tokio::test]
async fn no_invalid_path_reaches_the_piece_source() {
    let server = TestServer::new(TestSource::new(10_000, 1_024), ServeOptions::default()).await;
    for path in tricks() {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = exchange(server.addr, request).await;
        let (shown, status) = (&path[..path.floor_char_boundary(100)], status_of(&answer));
        // A head that is far too long may be cut off by a reset, which discards the response.
        let is_refused =
            matches!(status, Some(400 | 404 | 414 | 431)) || (status.is_none() && path.len() > 16_000);
        assert!(is_refused, "`{shown}`: {}", String::from_utf8_lossy(&answer));
        assert_eq!(server.asked(), 0, "`{shown}`");
    }
    let right =
        RawConnection::connect(server.addr).await.get(&format!("/v1/{}/have", artifact().as_str())).await;
    assert_eq!((right.status, server.asked()), (200, 1));
    server.stop().await;
}

#[tokio::test]
async fn other_methods_and_bodies_are_refused_before_any_read() {
    let server = TestServer::new(TestSource::new(10_000, 1_024), ServeOptions::default()).await;
    let path = format!("/v1/{}/have", artifact().as_str());
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get", "BREW"] {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = exchange(server.addr, request).await;
        assert_eq!(status_of(&answer), Some(405), "{method}");
        assert!(String::from_utf8_lossy(&answer).contains("allow: GET, HEAD\r\n"), "{method}");
    }
    for body in
        ["content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    {
        let hidden = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = exchange(server.addr, format!("GET {path} HTTP/1.1\r\nhost: x\r\n{body}{hidden}")).await;
        assert_eq!(status_of(&answer), Some(400), "{body}");
        assert_eq!(String::from_utf8_lossy(&answer).matches("HTTP/1.1 ").count(), 1, "{body}");
    }
    assert_eq!(server.asked(), 0);
    assert_eq!(server.counters.snapshot().refused.bad_request, 10);
}

#[tokio::test]
async fn two_thousand_corrupted_requests_are_survived() {
    let server = TestServer::new(TestSource::new(10_000, 1_024), ServeOptions::default()).await;
    let mut rng = Rng(0x1ea5_e401d);
    let mut reached = 0;
    for round in 0..2_000 {
        let line = mutated_line(&mut rng);
        let request = [&line[..], b"\r\nhost: x\r\nconnection: close\r\n\r\n"].concat();
        let before = server.asked();
        let answer = exchange(server.addr, &request).await;
        let shown = line.escape_ascii().to_string();
        let asked = server.asked() - before;
        assert!(asked == 0 || line.split(|byte| *byte == b'\n').any(is_right), "round {round}: {shown}");
        assert!(answer.is_empty() || status_of(&answer).is_some(), "round {round}: {shown}");
        reached += u64::from(asked > 0);
    }
    // Some are still valid; without any of these the check above would check nothing.
    assert!(reached > 10, "{reached}");
    let alive = RawConnection::connect(server.addr).await.get("/healthz").await;
    assert_eq!(alive.status, 200);
    server.stop().await;
}

/// A request line with up to four changes, or random bytes.
fn mutated_line(rng: &mut Rng) -> Vec<u8> {
    let hash = artifact().as_str().to_owned();
    let lines = [
        format!("GET /v1/{hash}/have HTTP/1.1"),
        format!("GET /v1/{hash}/pieces/1-3 HTTP/1.1"),
        "GET /healthz HTTP/1.1".into(),
    ];
    let mut line = lines[rng.below(3)].clone().into_bytes();
    if rng.below(20) == 0 {
        return (0..rng.below(300)).map(|_| rng.byte()).collect();
    }
    for _ in 0..=rng.below(4) {
        let at = rng.below(line.len().max(1));
        match rng.below(6) {
            0 => line.insert(at, rng.byte()),
            1 if !line.is_empty() => drop(line.remove(at)),
            2 if !line.is_empty() => line[at] = rng.byte(),
            3 if !line.is_empty() => line[at] = b"0123456789abcdef-/.% "[rng.below(21)],
            4 => drop(line.splice(at..at, b"../".iter().copied())),
            _ => line.extend_from_within(at..),
        }
    }
    line
}

/// Returns whether a line is a valid request, by an independent parser.
fn is_right(line: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) else { return false };
    let ["GET" | "HEAD", path, "HTTP/1.1" | "HTTP/1.0"] = line.split(' ').collect::<Vec<_>>()[..] else {
        return false;
    };
    let number =
        |text: &str| !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_hash =
        |text: &str| text.len() == 64 && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", "v1", hash, "have"] => is_hash(hash),
        ["", "v1", hash, "pieces", run] => is_hash(hash) && run.split('-').all(number),
        _ => false,
    }
}

struct Rng(u64);

impl Rng {
    /// `SplitMix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
