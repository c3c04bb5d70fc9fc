//! Errors of a journal of which a part is missing or corrupt: what it is, and what to do.

use leasehold_core::{Error, Kind, keys};

use crate::check::Remedy;

/// Adds the remedy to the error of a missing or corrupt part. Any other error is returned unchanged.
pub(super) fn with_way_out(error: Error) -> Error {
    // The error of an epoch file that has gone back says what to write into it.
    let has_remedy = remedy(&error) == Remedy::Update || error.to_string().ends_with("into `epoch`");
    if error.kind() != Kind::Corrupt || has_remedy {
        return error;
    }
    let message = format!(
        "{error}; run `leasehold check` to see what is lost, and restore it from a backup of the store"
    );
    Error::new(Kind::Corrupt, message).because(error)
}

/// Remedy for the part that an error describes.
pub(super) fn remedy(error: &Error) -> Remedy {
    // Every error of a newer format or record kind ends so, in `leasehold-core` and `leasehold-store`.
    if error.to_string().contains("upgrade leasehold") { Remedy::Update } else { Remedy::Restore }
}

/// Error of a log without a lease. Only the lease tells where the log begins.
pub(super) fn missing_lease() -> Error {
    let message = format!("`{}` is missing, although the log has commits", keys::JOURNAL_LEASE);
    Error::new(Kind::Corrupt, message)
}
