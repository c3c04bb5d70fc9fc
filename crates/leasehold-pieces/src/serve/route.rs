//! Paths of a piece server, formatted and parsed in one place.
//!
//! A path is parsed into a hash and numbers, and anything else is rejected: nothing is decoded, and nothing is joined to a
//! path of the file system.

use std::fmt;
use std::ops::Range;

use http::Uri;
use leasehold_core::ArtifactId;
use leasehold_core::limits::PIECES_MAX;
use leasehold_core::piece::PieceCut;

/// Most bytes of pieces in one response, unless a single piece has more: enough that a request costs little beside it,
/// and with sixteen responses at once a server needs no more than 64 MiB for them.
pub const RESPONSE_BYTES_MAX: u64 = 4 * 1_024 * 1_024;

/// Longest path that is parsed; the longest valid one is far shorter.
const PATH_BYTES_MAX: usize = 160;

/// Number of neighbouring pieces that may be requested at once: at least one.
#[must_use]
pub fn pieces_per_response(cut: &PieceCut) -> u32 {
    u32::try_from(RESPONSE_BYTES_MAX / u64::from(cut.piece_bytes())).unwrap_or(u32::MAX).max(1)
}

/// A request's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// Health check.
    Health,
    /// Piece map of an artifact.
    Have(ArtifactId),
    /// Neighbouring pieces.
    Pieces(ArtifactId, Range<u32>),
}

impl Route {
    /// Parses a path; `None` if it is unknown.
    pub(crate) fn parse(uri: &Uri) -> Option<Self> {
        let path = uri.path();
        if uri.query().is_some() || path.len() > PATH_BYTES_MAX {
            return None;
        }
        if path == "/healthz" {
            return Some(Self::Health);
        }
        let mut parts = path.strip_prefix("/v1/")?.split('/');
        let artifact = parts.next()?.parse().ok()?;
        match (parts.next()?, parts.next(), parts.next()) {
            ("have", None, None) => Some(Self::Have(artifact)),
            ("pieces", Some(pieces), None) => Some(Self::Pieces(artifact, parse_run(pieces)?)),
            _ => None,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Health => f.write_str("/healthz"),
            Self::Have(artifact) => write!(f, "/v1/{}/have", artifact.as_str()),
            Self::Pieces(artifact, run) => {
                write!(f, "/v1/{}/pieces/{}-{}", artifact.as_str(), run.start, run.end)
            }
        }
    }
}

/// Parses `first-end`, or the number of one piece; at least one, and within the limit of pieces.
fn parse_run(text: &str) -> Option<Range<u32>> {
    let run = match text.split_once('-') {
        Some((first, end)) => parse_number(first)?..parse_number(end)?,
        None => parse_number(text)?..parse_number(text)?.checked_add(1)?,
    };
    (run.start < run.end && run.end <= PIECES_MAX).then_some(run)
}

/// Parses a number without sign or leading zeros.
fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<Route> {
        Route::parse(&path.parse().unwrap())
    }

    #[test]
    fn a_formatted_path_parses_to_the_same_route() {
        for artifact in [ArtifactId::blake3([7; 32]), ArtifactId::sha256([8; 32])] {
            let longest = Route::Pieces(artifact.clone(), PIECES_MAX - 1..PIECES_MAX);
            assert!(longest.to_string().len() <= PATH_BYTES_MAX);
            for route in [Route::Health, Route::Have(artifact.clone()), longest] {
                assert_eq!(parse(&route.to_string()), Some(route));
            }
            let one = format!("/v1/{}/pieces/5", artifact.as_str());
            assert_eq!(parse(&one), Some(Route::Pieces(artifact, 5..6)));
        }
    }

    #[test]
    fn invalid_runs_are_rejected() {
        let artifact = "a".repeat(64);
        for run in
            ["", "-", "1-", "-1", "1-1", "2-1", "+1", "01", "0-65537", "65536", "1-2-3", "4294967296", "1e3"]
        {
            assert_eq!(parse(&format!("/v1/{artifact}/pieces/{run}")), None, "{run}");
        }
    }

    #[test]
    fn a_response_holds_four_mebibytes_of_pieces_or_one_piece() {
        for (piece_bytes, pieces) in [(1_024, 4_096), (1_048_576, 4), (4_194_304, 1), (16_777_216, 1)] {
            assert_eq!(pieces_per_response(&PieceCut::new(0, piece_bytes).unwrap()), pieces);
        }
    }
}
