//! Memory of this process, as the kernel counts it.

use anyhow::Context;

const STATUS: &str = "/proc/self/status";

/// Returns the peak in bytes: pages in memory at the same time, including the program and its libraries.
pub(crate) fn peak() -> anyhow::Result<u64> {
    parse(&std::fs::read_to_string(STATUS)?).with_context(|| format!("{STATUS} has no peak memory"))
}

/// Returns the current memory of this process in bytes.
pub(crate) fn resident() -> anyhow::Result<u64> {
    find(&std::fs::read_to_string(STATUS)?, "VmRSS:")
        .with_context(|| format!("{STATUS} has no resident memory"))
}

fn parse(status: &str) -> Option<u64> {
    find(status, "VmHWM:")
}

fn find(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_parsed_from_the_kernels_status_file() {
        assert_eq!(parse("VmSize:\t  900 kB\nVmHWM:\t    20 kB\n"), Some(20 * 1_024));
        assert_eq!(parse("VmSize:\t  900 kB\n"), None);
    }
}
