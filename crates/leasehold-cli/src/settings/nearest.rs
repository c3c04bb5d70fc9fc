//! Suggestions for unknown keys and variables: "did you mean …?"

use super::table::{Setting, TABLE};

/// Prefix of all environment variables of Leasehold.
pub(super) const PREFIX: &str = "LEASEHOLD_";

/// Setting that is probably meant by an unknown key: in the wrong table, misspelled, or both.
pub(super) fn key(unknown: &str) -> Option<&'static Setting> {
    let names = TABLE.iter().map(|setting| (setting.name.to_owned(), setting));
    let lasts = TABLE.iter().map(|setting| (last(setting.name).to_owned(), setting));
    let elsewhere = TABLE.iter().find(|setting| last(setting.name) == last(unknown));
    elsewhere.or_else(|| nearest(unknown, names)).or_else(|| nearest(last(unknown), lasts))
}

/// Setting that is probably meant by an unknown variable. Besides the variable itself, compares the full name of the
/// setting and its last part.
pub(super) fn variable(unknown: &str) -> Option<&'static Setting> {
    let bare = |variable: &str| variable.strip_prefix(PREFIX).unwrap_or(variable).to_owned();
    let spellings = TABLE.iter().flat_map(|setting| {
        [bare(setting.variable), snake(setting.name), snake(last(setting.name))].map(|name| (name, setting))
    });
    nearest(&bare(unknown), spellings)
}

fn nearest(
    unknown: &str,
    spellings: impl Iterator<Item = (String, &'static Setting)>,
) -> Option<&'static Setting> {
    // With more than a quarter of the letters wrong, a suggestion would mislead.
    let allowed = (unknown.chars().count() / 4).max(1);
    let (distance, setting) =
        spellings.map(|(name, setting)| (distance(unknown, &name), setting)).min_by_key(|(far, _)| *far)?;
    (distance <= allowed).then_some(setting)
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Dotted name in the form of a variable.
pub(super) fn snake(name: &str) -> String {
    name.to_uppercase().replace('.', "_")
}

/// Edit distance: letters to change, add, remove or swap with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut table = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = table[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
                let plain = changed.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                let swapped = i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
                if swapped { plain.min(table[i - 2][j - 2] + 1) } else { plain }
            };
        }
    }
    table[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_counts_letters() {
        for (left, right, steps) in [
            ("", "", 0),
            ("", "ab", 2),
            ("store", "stroe", 1),
            ("store", "stores", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((distance(left, right), distance(right, left)), (steps, steps), "{left} {right}");
        }
    }

    #[test]
    fn slips_and_guesses_are_understood() {
        for (unknown, meant) in [
            ("worker.concurency", Some("worker.concurrency")),
            ("wroker.concurrency", Some("worker.concurrency")),
            ("queue.concurrency", Some("worker.concurrency")),
            ("concurrency", Some("worker.concurrency")),
            ("queue.tpye", Some("queue.type")),
            ("worker.lease_ttl_secs", Some("worker.shard_leasing.lease_ttl_secs")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(key(unknown).map(|setting| setting.name), meant, "{unknown}");
        }
        for (unknown, meant) in [
            ("LEASEHOLD_STROE", Some("LEASEHOLD_STORE")),
            ("LEASEHOLD_QUEUE_STORE", Some("LEASEHOLD_STORE")),
            ("LEASEHOLD_CONCURRENCY", Some("LEASEHOLD_WORKER_CONCURRENCY")),
            ("LEASEHOLD_WORKER_SHARD_LEASING_ENABLED", Some("LEASEHOLD_SHARD_LEASING")),
            ("LEASEHOLD_X", None),
        ] {
            assert_eq!(variable(unknown).map(|setting| setting.variable), meant, "{unknown}");
        }
    }
}
