//! Status codes of moto. It is not atomic, so there are no races.

use leasehold_store::testing::conformance::{Suite, SuiteOptions};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{bucket, program};

struct Moto {
    child: Child,
    endpoint: String,
}

impl Moto {
    async fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = Command::new(program("LEASEHOLD_MOTO"))
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // There is no event when a server listens, so it is polled.
        for _ in 0..2_400 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Self { child, endpoint: format!("http://127.0.0.1:{port}") };
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("moto does not listen");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn create_bucket(endpoint: &str) {
    use http_body_util::Empty;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<Empty<bytes::Bytes>>();
    let request = http::Request::put(format!("{endpoint}/tasks")).body(Empty::new()).unwrap();
    let answer = client.request(request).await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn moto_gives_the_same_status_codes() {
    let moto = Moto::start().await;
    create_bucket(&moto.endpoint).await;
    // It answers a part of an aborted upload with 500.
    let extent = SuiteOptions { races: false, clear_uploads: false, ..SuiteOptions::default() };
    Suite::new(bucket(&moto.endpoint, "conformance"), extent).run().await.unwrap();
}
