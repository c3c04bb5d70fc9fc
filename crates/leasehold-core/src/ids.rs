//! Random names. Chance is passed in: this crate has none of its own.

use serde::{Deserialize, Serialize};
use std::fmt;

/// 128 random bits as a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HexName(String);

impl HexName {
    /// A name made of these bits.
    #[must_use]
    pub fn from_random(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HexName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one write: fresh in every record that is written on condition, so that after a lost answer
/// the writer can recognise its own bytes. It also makes equal records differ, since stores derive versions
/// from content.
pub type WriteId = HexName;
