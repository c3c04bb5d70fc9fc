//! Large files in pieces: how a file is cut, which of its pieces someone has, and who is to fetch which from whom.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`cut`] | where pieces begin and end |
//! | [`map`] | a set of pieces |
//! | [`manager`] | leases on pieces: who fetches which from whom |
//! | [`config`] | the numbers by which it decides |
//! | [`picker`] | which pieces come next |
//! | `score` | how far a peer is trusted |
//! | `chance` | chance from a seed |

mod chance;
pub mod config;
pub mod cut;
pub mod manager;
pub mod map;
pub mod picker;
mod score;

pub use config::ManagerConfig;
pub use cut::Cut;
pub use manager::{
    LeaseRequest, LeaseResponse, PeerId, PeerKind, PieceLease, PieceLeaseId, PieceLeaseManager,
};
pub use map::PieceMap;
pub use picker::PieceOrder;
