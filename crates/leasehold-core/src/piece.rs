//! Large files in pieces: boundaries, piece maps, and the choice of the peer from which each piece is fetched.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cut`] | boundaries of pieces |
//! | [`map`] | set of pieces |
//! | [`manager`] | leases on pieces: which piece is fetched from which peer |
//! | [`config`] | parameters of the manager |
//! | [`picker`] | choice of the next pieces |
//! | `score` | score of a peer |

pub mod config;
pub mod cut;
pub mod manager;
pub mod map;
pub mod picker;
mod score;

pub use config::ManagerConfig;
pub use cut::PieceCut;
pub use manager::{
    LeaseRequest, LeaseResponse, PeerId, PeerKind, PieceLease, PieceLeaseId, PieceLeaseManager,
};
pub use map::PieceMap;
pub use picker::PieceOrder;
