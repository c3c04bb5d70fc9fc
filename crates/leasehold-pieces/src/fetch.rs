//! Fetches an artifact from the origin and from peers at the same time, every piece under a lease.
//!
//! One loop drives a fetch, and everything it waits for is a future that it owns: dropping a fetch ends it. The leases in
//! [`leasehold_core::piece`] decide which source sends which piece; this module runs the transfers and decides which pieces
//! to request from the origin (the artifact's object in the store):
//!
//! * Without peers, all of them, in runs of neighbouring pieces.
//! * Otherwise each block of a few pieces is assigned to one node, by rendezvous hashing over the nodes that fetch this
//!   artifact or have it. That node requests the block from the origin, and the other nodes get it from that node. So a
//!   piece is read from the origin about once. To include nodes that start at the same moment, all nodes that serve count
//!   at first.
//! * An artifact of a single block is not assigned: every node requests it at once.
//! * A fetch that has received nothing for a while (`FetchOptions::idle_timeout`) also requests blocks that are assigned to other nodes,
//!   one rank after the other, and pieces that peers have but do not send.
//!
//! | module | contents |
//! | --- | --- |
//! | `requests` | requests to the sources |
//! | `origin_assignment` | nodes that request each block from the origin |
//! | `transfers` | results of transfers |
//! | `peer_state` | state of each peer |
//! | `origin`, `source` | sources of pieces |
//! | `options` | options, events, statistics |

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::{PeerId, PeerKind, PieceLease, PieceLeaseId, PieceLeaseManager, PieceMap};
use leasehold_core::{Error, Kind, Reason, Result};
use leasehold_store::host::{Host, Instant};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::assemble::{Assembly, PieceOutcome};
use crate::peer::PeerClient;
use crate::peers::{Peer, Peers};

mod options;
mod origin;
mod origin_assignment;
mod peer_state;
mod requests;
mod source;
mod transfers;

pub use options::{FetchEvent, FetchOptions, Fetched};
pub(crate) use origin::Origin;
use origin_assignment::OriginAssignment;
use peer_state::{Backoff, PeerState};
use requests::Transfer;
use source::TransferError;

/// Peer id of the store. No peer can have it: names contain no parentheses.
const ORIGIN: &str = "(origin)";

/// Failures in a row after which a fetch without origin gives up on a peer: some ten seconds with the pauses.
const PEER_FAILURES_MAX: u32 = 8;

/// Pause between two checks of the progress of transfers.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which every node that serves counts, even if it does not fetch this artifact: it may be about to start.
const START_GRACE: Duration = Duration::from_secs(2);

/// Pause between two lists of peers.
const PEERS_INTERVAL: Duration = Duration::from_secs(10);

/// Longest wait of a fetch without origin for the next byte from any peer.
const NO_DATA_TIMEOUT: Duration = Duration::from_secs(30);

/// Sources of a fetch.
pub(crate) struct Sources<'a> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) origin: Option<Origin>,
    pub(crate) peers: Option<&'a Peers>,
}

/// Fetches the missing pieces.
pub(crate) async fn fetch(
    assembly: &Arc<Assembly>,
    sources: Sources<'_>,
    options: &FetchOptions,
    on_event: &(dyn Fn(FetchEvent) + Send + Sync),
) -> Result<Fetched> {
    options.check()?;
    let mut fetch = Fetch::new(assembly, sources, options, on_event)?;
    fetch.report_progress();
    while !fetch.manager.is_done() {
        fetch.ensure_source_left()?;
        fetch.refresh_peers();
        fetch.request_pieces();
        fetch.wait().await?;
    }
    Ok(fetch.fetched())
}

/// Event that a fetch waits for.
enum Event {
    Received(PieceLeaseId, Result<Bytes, TransferError>),
    Written(PieceLease, Result<Vec<(u32, PieceOutcome)>>),
    Have(PeerId, Result<Option<PieceMap>>),
    Peers(Result<Vec<Peer>>),
    /// A transfer was cancelled.
    Cancelled,
}

struct Fetch<'a> {
    assembly: &'a Arc<Assembly>,
    host: Arc<dyn Host>,
    peers: Option<&'a Peers>,
    options: &'a FetchOptions,
    on_event: &'a (dyn Fn(FetchEvent) + Send + Sync),
    manager: PieceLeaseManager,
    assignment: OriginAssignment,
    origin: Option<Arc<Origin>>,
    peer_states: BTreeMap<PeerId, PeerState>,
    /// Peers that are not tried again unless they announce themselves again.
    excluded: BTreeMap<PeerId, Arc<PeerClient>>,
    /// All nodes that serve, according to the store.
    announced: BTreeSet<PeerId>,
    events: FuturesUnordered<BoxFuture<'a, Event>>,
    transfers: HashMap<PieceLeaseId, Transfer>,
    started: Instant,
    /// Time of the last piece.
    last_piece_at: Duration,
    /// Time of the last byte of a piece.
    last_byte_at: Duration,
    peers_at: Option<Duration>,
    is_listing: bool,
    has_peer_list: bool,
    /// Earliest time of the next request, by the rate limit.
    paced_until: Duration,
    origin_backoff: Backoff,
    /// Longest run to request from the origin: shorter after one that did not arrive in time.
    run_bytes_max: u64,
    /// Pieces that arrived corrupt from the origin once.
    corrupt_from_origin: PieceMap,
    /// Reason for which the origin is no longer used.
    origin_error: Option<Error>,
    result: Fetched,
}

impl<'a> Fetch<'a> {
    fn new(
        assembly: &'a Arc<Assembly>,
        sources: Sources<'a>,
        options: &'a FetchOptions,
        on_event: &'a (dyn Fn(FetchEvent) + Send + Sync),
    ) -> Result<Self> {
        let manifest = assembly.manifest();
        let cut = manifest.cut;
        let mut manager = PieceLeaseManager::new(cut, options.leases.clone(), sources.host.random())?;
        let verified = assembly.verified();
        for piece in verified.iter() {
            manager.note_verified(piece)?;
        }
        let resumed_bytes = options::bytes_of(&cut, &verified);
        if sources.origin.is_some() {
            manager.add_peer(ORIGIN.into(), PeerKind::Origin, PieceMap::all(cut.pieces()), Duration::ZERO)?;
        }
        Ok(Self {
            assembly,
            started: sources.host.instant(),
            host: sources.host,
            peers: sources.peers,
            options,
            on_event,
            manager,
            assignment: OriginAssignment::new(manifest.artifact.clone(), &cut),
            origin: sources.origin.map(Arc::new),
            peer_states: BTreeMap::new(),
            excluded: BTreeMap::new(),
            announced: BTreeSet::new(),
            events: FuturesUnordered::new(),
            transfers: HashMap::new(),
            last_piece_at: Duration::ZERO,
            last_byte_at: Duration::ZERO,
            peers_at: None,
            is_listing: false,
            has_peer_list: false,
            paced_until: Duration::ZERO,
            origin_backoff: Backoff::default(),
            run_bytes_max: RANGE_BYTES_MAX,
            corrupt_from_origin: PieceMap::none(cut.pieces()),
            origin_error: None,
            result: Fetched { resumed_bytes, ..Fetched::nothing() },
        })
    }

    fn now(&self) -> Duration {
        self.host.instant().since(self.started)
    }

    fn idle(&self) -> Duration {
        self.now().saturating_sub(self.last_piece_at)
    }

    /// Waits for the next event, or for the next time at which something is due.
    async fn wait(&mut self) -> Result<()> {
        let timeout = self.host.sleep(self.next_wakeup());
        let event = if self.events.is_empty() {
            timeout.await;
            None
        } else {
            match select(self.events.next(), timeout).await {
                Either::Left((event, _)) => event,
                Either::Right(_) => None,
            }
        };
        event.map_or(Ok(()), |event| self.handle_event(event))
    }

    /// Time until something is due without an event.
    fn next_wakeup(&self) -> Duration {
        let now = self.now();
        let idle_timeout = self.options.idle_timeout;
        let backoffs = self.peer_states.values().map(|state| state.backoff.until);
        let mut times: Vec<Duration> =
            backoffs.chain([self.paced_until, self.origin_backoff.until]).collect();
        // Nodes that only serve count until then.
        times.push(START_GRACE);
        if !idle_timeout.is_zero() {
            // The next rank of blocks falls to this node.
            let ranks = self.idle().as_millis() / idle_timeout.as_millis().max(1) + 1;
            times.push(self.last_piece_at + idle_timeout * u32::try_from(ranks).unwrap_or(u32::MAX));
        }
        if !self.transfers.is_empty() {
            // Bytes that arrive extend their lease, but only before it expires.
            times.push(now + PROGRESS_INTERVAL);
        }
        if self.origin.is_none() {
            times.push(self.last_byte_at + NO_DATA_TIMEOUT);
        }
        times.extend(self.manager.next_expiry());
        times.extend(self.peers_at.filter(|_| !self.is_listing).map(|at| at + PEERS_INTERVAL));
        // Times in the past were handled before.
        let next = times.into_iter().filter(|at| *at > now).min();
        next.map_or(PEERS_INTERVAL, |at| at.saturating_sub(now)).max(Duration::from_millis(1))
    }

    fn handle_event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Received(id, Ok(bytes)) => self.on_received(id, bytes),
            Event::Received(id, Err(failed)) => self.on_failed(id, failed),
            Event::Written(lease, pieces) => self.on_written(&lease, pieces?),
            Event::Have(peer, have) => self.on_piece_map(&peer, have),
            Event::Peers(peers) => self.on_peers(peers),
            Event::Cancelled => {}
        }
        Ok(())
    }

    fn report_failure(&self, peer: &PeerId, reason: String) {
        tracing::debug!(%peer, error = %reason, "peer failed to deliver pieces");
        (self.on_event)(FetchEvent::PeerFailed { peer: peer.to_string(), reason });
    }

    fn report_progress(&self) {
        let (cut, verified) = (self.assembly.manifest().cut, self.manager.verified());
        (self.on_event)(FetchEvent::Progress {
            pieces: verified.count(),
            pieces_total: cut.pieces(),
            bytes: options::bytes_of(&cut, verified),
            bytes_total: cut.size(),
        });
    }

    /// Fails if the origin is no longer used and no peer has the missing pieces, or none sends them.
    fn ensure_source_left(&mut self) -> Result<()> {
        if self.origin.is_some() {
            return Ok(());
        }
        let is_asking = self.is_listing
            || (self.peers.is_some() && !self.has_peer_list)
            || self.peer_states.values().any(|state| !state.has_answered);
        let may_send = |(id, state): (&PeerId, &PeerState)| {
            let is_bad = self.manager.is_quarantined(id) || state.backoff.failures >= PEER_FAILURES_MAX;
            state.have.is_some() && !is_bad
        };
        let may_arrive = is_asking || self.peer_states.iter().any(may_send);
        if may_arrive && self.now().saturating_sub(self.last_byte_at) < NO_DATA_TIMEOUT {
            return Ok(());
        }
        let artifact = &self.assembly.manifest().artifact;
        let message = format!("no source has the missing pieces of artifact {artifact}; publish it again");
        let missing = || Error::new(Kind::Unavailable, message).with_reason(Reason::Missing);
        Err(self.origin_error.take().unwrap_or_else(missing))
    }

    fn fetched(mut self) -> Fetched {
        self.result.leases = Some(self.manager.stats(self.now()));
        self.result
    }
}
