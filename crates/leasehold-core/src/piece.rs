//! Large files in pieces: how a file is cut, and which of its pieces someone has.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`cut`] | where pieces begin and end |
//! | [`map`] | a set of pieces |

pub mod cut;
pub mod map;

pub use cut::Cut;
pub use map::PieceMap;
