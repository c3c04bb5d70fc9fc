//! Dates in the formats of S3.

#![expect(clippy::disallowed_methods, reason = "a server has a clock of its own, and no test decides by it")]

/// Time by a server's own clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp(jiff::Timestamp);

impl Stamp {
    pub(super) fn now() -> Self {
        Self(jiff::Timestamp::now())
    }

    /// Format of the headers `Date` and `Last-Modified`.
    pub(super) fn http(self) -> String {
        let printed = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&self.0);
        printed.expect("the current time can be printed")
    }

    /// Format of the element `LastModified` in a list; S3 uses whole seconds.
    pub(super) fn iso(self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
    }
}
