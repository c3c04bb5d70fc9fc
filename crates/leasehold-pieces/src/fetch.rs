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
//! * A fetch that has received nothing for a while (the *patience*) also requests blocks that are assigned to other nodes,
//!   one rank after the other, and pieces that peers have but do not send.
//!
//! | module | contents |
//! | --- | --- |
//! | `ask` | requests to the sources |
//! | `origin_assignment` | whose duty it is to ask the origin |
//! | `transfers` | results of transfers |
//! | `peer_state` | state of each peer |
//! | `origin`, `source` | sources of pieces |
//! | `options` | options, events, statistics |

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::{PeerId, PeerKind, PieceLeaseId, PieceLeaseManager, PieceMap, PieceRequest};
use leasehold_core::{Error, Kind, Reason, Result};
use leasehold_store::host::{Host, Instant};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::assemble::{Assembly, Placed};
use crate::peer::PeerClient;
use crate::peers::{Peer, Peers};

mod ask;
mod options;
mod origin;
mod origin_assignment;
mod peer_state;
mod source;
mod transfers;

use ask::Flight;
pub use options::{FetchEvent, FetchOptions, Fetched};
pub(crate) use origin::Origin;
use origin_assignment::OriginAssignment;
use peer_state::{PeerState, Rest};
use source::TransferError;

/// Peer id of the store. No peer can have it: names contain no parentheses.
const ORIGIN: &str = "(origin)";

/// Failures in a row after which a fetch without origin gives up on a peer: some ten seconds with the pauses.
const PEER_FAILURES_MAX: u32 = 8;

/// Pause between two checks of the progress of transfers.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Time for which every node that serves counts, even if it does not fetch this artifact: it may be about to start.
const GRACE: Duration = Duration::from_secs(2);

/// Pause between two lists of peers.
const PEERS_EVERY: Duration = Duration::from_secs(10);

/// Longest wait of a fetch without origin for the next byte from any peer.
const NOBODY_WAIT: Duration = Duration::from_secs(30);

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
    tell: &(dyn Fn(FetchEvent) + Send + Sync),
) -> Result<Fetched> {
    options.check()?;
    let mut fetch = Fetch::new(assembly, sources, options, tell)?;
    fetch.tell_progress();
    while !fetch.manager.is_done() {
        fetch.check_for_hope()?;
        fetch.look_for_peers();
        fetch.ask_all();
        fetch.wait().await?;
    }
    Ok(fetch.fetched())
}

/// Event that a fetch waits for.
enum Event {
    Landed(PieceLeaseId, Result<Bytes, TransferError>),
    Placed(PieceRequest, Result<Vec<(u32, Placed)>>),
    Have(PeerId, Result<Option<PieceMap>>),
    Peers(Result<Vec<Peer>>),
    /// A transfer was cancelled.
    Nothing,
}

struct Fetch<'a> {
    assembly: &'a Arc<Assembly>,
    host: Arc<dyn Host>,
    peers: Option<&'a Peers>,
    options: &'a FetchOptions,
    tell: &'a (dyn Fn(FetchEvent) + Send + Sync),
    manager: PieceLeaseManager,
    duties: OriginAssignment,
    origin: Option<Arc<Origin>>,
    known: BTreeMap<PeerId, PeerState>,
    /// Peers that are not tried again unless they announce themselves again.
    left_out: BTreeMap<PeerId, Arc<PeerClient>>,
    /// All nodes that serve, according to the store.
    announced: BTreeSet<PeerId>,
    events: FuturesUnordered<BoxFuture<'a, Event>>,
    flights: HashMap<PieceLeaseId, Flight>,
    started: Instant,
    /// Time of the last piece.
    got_at: Duration,
    /// Time of the last byte of a piece.
    heard_at: Duration,
    peers_at: Option<Duration>,
    is_listing: bool,
    is_told_of_peers: bool,
    /// Earliest time of the next request, by the rate limit.
    paced_until: Duration,
    origin_rest: Rest,
    /// Longest run to request from the origin: shorter after one that did not arrive in time.
    run_bytes_max: u64,
    /// Pieces that arrived corrupt from the origin once.
    wrong_of_origin: PieceMap,
    /// Reason for which the origin is no longer used.
    origin_error: Option<Error>,
    result: Fetched,
}

impl<'a> Fetch<'a> {
    fn new(
        assembly: &'a Arc<Assembly>,
        sources: Sources<'a>,
        options: &'a FetchOptions,
        tell: &'a (dyn Fn(FetchEvent) + Send + Sync),
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
            tell,
            manager,
            duties: OriginAssignment::new(manifest.artifact.clone(), &cut),
            origin: sources.origin.map(Arc::new),
            known: BTreeMap::new(),
            left_out: BTreeMap::new(),
            announced: BTreeSet::new(),
            events: FuturesUnordered::new(),
            flights: HashMap::new(),
            got_at: Duration::ZERO,
            heard_at: Duration::ZERO,
            peers_at: None,
            is_listing: false,
            is_told_of_peers: false,
            paced_until: Duration::ZERO,
            origin_rest: Rest::default(),
            run_bytes_max: RANGE_BYTES_MAX,
            wrong_of_origin: PieceMap::none(cut.pieces()),
            origin_error: None,
            result: Fetched { resumed_bytes, ..Fetched::nothing() },
        })
    }

    fn now(&self) -> Duration {
        self.host.instant().since(self.started)
    }

    fn idle(&self) -> Duration {
        self.now().saturating_sub(self.got_at)
    }

    /// Waits for the next event, or for the next time at which something is due.
    async fn wait(&mut self) -> Result<()> {
        let late = self.host.sleep(self.next_look());
        let event = if self.events.is_empty() {
            late.await;
            None
        } else {
            match select(self.events.next(), late).await {
                Either::Left((event, _)) => event,
                Either::Right(_) => None,
            }
        };
        event.map_or(Ok(()), |event| self.happened(event))
    }

    /// Time until something is due without an event.
    fn next_look(&self) -> Duration {
        let now = self.now();
        let patience = self.options.patience;
        let rests = self.known.values().map(|known| known.rest.until);
        let mut times: Vec<Duration> = rests.chain([self.paced_until, self.origin_rest.until]).collect();
        // Nodes that only serve count until then.
        times.push(GRACE);
        if !patience.is_zero() {
            // The next rank of blocks falls to this node.
            let ranks = self.idle().as_millis() / patience.as_millis().max(1) + 1;
            times.push(self.got_at + patience * u32::try_from(ranks).unwrap_or(u32::MAX));
        }
        if !self.flights.is_empty() {
            // Bytes that arrive extend their lease, but only before it expires.
            times.push(now + PROGRESS_EVERY);
        }
        if self.origin.is_none() {
            times.push(self.heard_at + NOBODY_WAIT);
        }
        times.extend(self.manager.next_expiry());
        times.extend(self.peers_at.filter(|_| !self.is_listing).map(|at| at + PEERS_EVERY));
        // Times in the past were handled before.
        let next = times.into_iter().filter(|at| *at > now).min();
        next.map_or(PEERS_EVERY, |at| at.saturating_sub(now)).max(Duration::from_millis(1))
    }

    fn happened(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Landed(id, Ok(bytes)) => self.landed(id, bytes),
            Event::Landed(id, Err(failed)) => self.failed(id, failed),
            Event::Placed(lease, placed) => self.placed(&lease, placed?),
            Event::Have(peer, have) => self.told_have(&peer, have),
            Event::Peers(peers) => self.told_peers(peers),
            Event::Nothing => {}
        }
        Ok(())
    }

    fn blame(&self, peer: &PeerId, why: String) {
        tracing::debug!(%peer, error = %why, "peer failed to deliver pieces");
        (self.tell)(FetchEvent::Blamed { peer: peer.to_string(), why });
    }

    fn tell_progress(&self) {
        let (cut, verified) = (self.assembly.manifest().cut, self.manager.verified());
        (self.tell)(FetchEvent::Progress {
            pieces: verified.count(),
            pieces_total: cut.pieces(),
            bytes: options::bytes_of(&cut, verified),
            bytes_total: cut.size(),
        });
    }

    /// Fails if the origin is no longer used and no peer has the missing pieces, or none sends them.
    fn check_for_hope(&mut self) -> Result<()> {
        if self.origin.is_some() {
            return Ok(());
        }
        let is_asking = self.is_listing
            || (self.peers.is_some() && !self.is_told_of_peers)
            || self.known.values().any(|known| !known.has_answered);
        let may_give = |(id, known): (&PeerId, &PeerState)| {
            let is_bad = self.manager.is_quarantined(id) || known.rest.failures >= PEER_FAILURES_MAX;
            known.have.is_some() && !is_bad
        };
        let may_come = is_asking || self.known.iter().any(may_give);
        if may_come && self.now().saturating_sub(self.heard_at) < NOBODY_WAIT {
            return Ok(());
        }
        let artifact = &self.assembly.manifest().artifact;
        let message = format!("no source has the missing pieces of artifact {artifact}; publish it again");
        let missing = || Error::new(Kind::Unavailable, message).about(Reason::Missing);
        Err(self.origin_error.take().unwrap_or_else(missing))
    }

    fn fetched(mut self) -> Fetched {
        self.result.leases = Some(self.manager.stats(self.now()));
        self.result
    }
}
