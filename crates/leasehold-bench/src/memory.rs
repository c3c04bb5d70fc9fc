//! The memory of this process, as the kernel counts it.

use anyhow::Context;

const STATUS: &str = "/proc/self/status";

/// In bytes: pages that were in memory at the same time, of the program and its libraries too.
pub(crate) fn peak() -> anyhow::Result<u64> {
    parse(&std::fs::read_to_string(STATUS)?).with_context(|| format!("{STATUS} does not tell the peak"))
}

/// What this process has in memory now, in bytes.
pub(crate) fn resident() -> anyhow::Result<u64> {
    find(&std::fs::read_to_string(STATUS)?, "VmRSS:").with_context(|| format!("{STATUS} does not tell it"))
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
    fn the_peak_is_read_from_what_the_kernel_says() {
        assert_eq!(parse("VmSize:\t  900 kB\nVmHWM:\t    20 kB\n"), Some(20 * 1_024));
        assert_eq!(parse("VmSize:\t  900 kB\n"), None);
    }
}
