//! Fetching an artifact: from the origin and from peers at the same time, every piece under a lease.
//!
//! One loop drives it all, and everything it waits for is a future that it owns: dropping a fetch ends it. The rules of who
//! fetches which piece are in [`leasehold_core::piece`]; here are the transfers, and the question of what to ask the origin
//! for:
//!
//! * With nobody else around, everything, in runs of neighbouring pieces.
//! * Otherwise each block of a few pieces has one node whose *duty* it is to get it from the origin, by rendezvous hashing
//!   over the nodes that fetch this artifact or have it; the others get it from that node. So a piece leaves the origin
//!   about once. Who joins at the same moment must not be overlooked: for the first while every node that serves at all
//!   counts.
//! * What fits into one block is nobody's duty: everyone asks at once.
//! * A fetch that has got nothing for a while (the *patience*) takes on the duties of others, one rank after the other, and
//!   what peers have but do not give.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `ask` | whom to ask for what |
//! | `duty` | whose duty it is to ask the origin |
//! | `land` | what comes of transfers |
//! | `know` | what is known of peers |
//! | `origin`, `source` | where pieces come from |
//! | `told` | options, events, figures |

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::{PeerId, PeerKind, PieceLease, PieceLeaseId, PieceLeaseManager, PieceMap};
use leasehold_core::{Error, Kind, Matter, Result};
use leasehold_store::host::{Host, Instant};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::assemble::{Assembly, Placed};
use crate::peer::PeerClient;
use crate::peers::{Peer, Peers};

mod ask;
mod duty;
mod know;
mod land;
mod origin;
mod source;
mod told;

use ask::Flight;
use duty::Duties;
use know::{Known, Rest};
pub(crate) use origin::Origin;
use source::Failed;
pub use told::{FetchEvent, FetchOptions, Fetched};

/// The store under its name among the peers. No peer can be called so: names have no such sign.
const ORIGIN: &str = "(origin)";

/// Without the origin, a peer is not hoped for any more after so many failures in a row: some ten seconds with the pauses.
const PEER_FAILURES_MAX: u32 = 8;

/// How often to look how far transfers have come.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// For so long every node that serves counts, whether it fetches this artifact or not: others may be about to begin, too.
const GRACE: Duration = Duration::from_secs(2);

/// How often to look for peers that have come.
const PEERS_EVERY: Duration = Duration::from_secs(10);

/// Without the origin, a fetch waits so long for the next byte from anyone.
const NOBODY_WAIT: Duration = Duration::from_secs(30);

/// Whom a fetch can ask.
pub(crate) struct Sources<'a> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) origin: Option<Origin>,
    pub(crate) peers: Option<&'a Peers>,
}

/// Fetches what is missing.
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

/// What a fetch waits for.
enum Event {
    Landed(PieceLeaseId, Result<Bytes, Failed>),
    Placed(PieceLease, Result<Vec<(u32, Placed)>>),
    Have(PeerId, Result<Option<PieceMap>>),
    Peers(Result<Vec<Peer>>),
    /// A transfer was given up.
    Nothing,
}

struct Fetch<'a> {
    assembly: &'a Arc<Assembly>,
    host: Arc<dyn Host>,
    peers: Option<&'a Peers>,
    options: &'a FetchOptions,
    tell: &'a (dyn Fn(FetchEvent) + Send + Sync),
    manager: PieceLeaseManager,
    duties: Duties,
    origin: Option<Arc<Origin>>,
    known: BTreeMap<PeerId, Known>,
    /// Those that were left out: not to be tried again, unless they announce themselves anew.
    left_out: BTreeMap<PeerId, Arc<PeerClient>>,
    /// All that serve anything, as the store says.
    announced: BTreeSet<PeerId>,
    events: FuturesUnordered<BoxFuture<'a, Event>>,
    flights: HashMap<PieceLeaseId, Flight>,
    started: Instant,
    /// When something was last got.
    got_at: Duration,
    /// When a byte of a piece was last heard of.
    heard_at: Duration,
    peers_at: Option<Duration>,
    is_listing: bool,
    is_told_of_peers: bool,
    /// When the next byte may be asked for.
    paced_until: Duration,
    origin_rest: Rest,
    /// The longest run to ask the origin for: shorter after one that did not come in time.
    run_bytes_max: u64,
    /// What the origin gave wrong once.
    wrong_of_origin: PieceMap,
    /// Why the origin is not asked any more.
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
        let resumed_bytes = told::bytes_of(&cut, &verified);
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
            duties: Duties::new(manifest.artifact.clone(), &cut),
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

    /// Waits for something to happen, or for the time at which something has to be done.
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

    /// How long nothing but an event can change anything.
    fn next_look(&self) -> Duration {
        let now = self.now();
        let patience = self.options.patience;
        let rests = self.known.values().map(|known| known.rest.until);
        let mut times: Vec<Duration> = rests.chain([self.paced_until, self.origin_rest.until]).collect();
        // Whoever only serves counts for this long.
        times.push(GRACE);
        if !patience.is_zero() {
            // The next rank of duties falls to us.
            let ranks = self.idle().as_millis() / patience.as_millis().max(1) + 1;
            times.push(self.got_at + patience * u32::try_from(ranks).unwrap_or(u32::MAX));
        }
        if !self.flights.is_empty() {
            // Bytes that have come postpone the expiry of their lease, but only before it.
            times.push(now + PROGRESS_EVERY);
        }
        if self.origin.is_none() {
            times.push(self.heard_at + NOBODY_WAIT);
        }
        times.extend(self.manager.next_expiry());
        times.extend(self.peers_at.filter(|_| !self.is_listing).map(|at| at + PEERS_EVERY));
        // What is past already was looked at before we came here.
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
        tracing::debug!("{peer}: {why}");
        (self.tell)(FetchEvent::Blamed { peer: peer.to_string(), why });
    }

    fn tell_progress(&self) {
        let (cut, verified) = (self.assembly.manifest().cut, self.manager.verified());
        (self.tell)(FetchEvent::Progress {
            pieces: verified.count(),
            pieces_total: cut.pieces(),
            bytes: told::bytes_of(&cut, verified),
            bytes_total: cut.size(),
        });
    }

    /// Without the origin: fails when nobody has what is missing, or those who have it do not give it.
    fn check_for_hope(&mut self) -> Result<()> {
        if self.origin.is_some() {
            return Ok(());
        }
        let is_asking = self.is_listing
            || (self.peers.is_some() && !self.is_told_of_peers)
            || self.known.values().any(|known| !known.has_answered);
        let may_give = |(id, known): (&PeerId, &Known)| {
            let is_bad = self.manager.is_quarantined(id) || known.rest.failures >= PEER_FAILURES_MAX;
            known.have.is_some() && !is_bad
        };
        let may_come = is_asking || self.known.iter().any(may_give);
        if may_come && self.now().saturating_sub(self.heard_at) < NOBODY_WAIT {
            return Ok(());
        }
        let artifact = &self.assembly.manifest().artifact;
        let message = format!("nobody gives the missing pieces of artifact {artifact}");
        let nobody = || Error::new(Kind::Unavailable, message).about(Matter::Missing);
        Err(self.origin_error.take().unwrap_or_else(nobody))
    }

    fn fetched(mut self) -> Fetched {
        self.result.leases = Some(self.manager.stats(self.now()));
        self.result
    }
}
