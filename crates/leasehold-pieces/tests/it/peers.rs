//! Discovery of peers.

use leasehold_core::{Name, keys};
use leasehold_pieces::Peers;
use leasehold_store::Purpose;

use crate::support::TestCluster;

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_found_among_a_thousand_released_names() {
    let cluster = TestCluster::new();
    let client = cluster.client();
    for number in 0..1_000 {
        let name = Name::checked("name", &format!("a{number:04}")).unwrap();
        client.put_always(Purpose::Lease, &keys::peer(&name), "{}".into()).await.unwrap();
    }
    let serving = cluster.serve("z").await;
    let peers = Peers::new(client, None, None);
    let live = peers.live().await.unwrap();
    assert_eq!(live.iter().map(|peer| peer.id.to_string()).collect::<Vec<_>>(), ["z"]);
    serving.stop().await;
    assert!(peers.live().await.unwrap().is_empty());
}
