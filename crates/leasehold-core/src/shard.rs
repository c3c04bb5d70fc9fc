//! Shards of a queue, so that workers can divide the scanning among themselves.
//!
//! A task's shard is the first one to four hex digits of its id. The number of digits is a property of the queue,
//! stored in `queue.json`, so that producers and workers cannot disagree (promise P8).

use crate::error::{Error, Result};
use crate::ids::TaskId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of groups in which shards are leased. Renewing 64 leases every 10 s costs about as much as 6 tasks
/// per second.
pub const GROUPS_MAX: usize = 64;

/// Number of hex digits in a shard name: 1 to 4, hence 16 to 65,536 shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct ShardLen(u8);

impl ShardLen {
    /// 16 shards, enough for up to ten thousand tasks a day.
    pub const DEFAULT: ShardLen = ShardLen(1);

    /// Validates the number of digits.
    pub fn new(digits: u8) -> Result<Self> {
        match digits {
            1..=4 => Ok(Self(digits)),
            _ => Err(Error::invalid(format!("shard_prefix_len must be 1 to 4, got {digits}"))),
        }
    }

    /// Number of hex digits.
    #[must_use]
    pub fn digits(self) -> u8 {
        self.0
    }

    /// Number of shards.
    #[must_use]
    pub fn count(self) -> usize {
        1 << (4 * self.0)
    }

    /// Returns the shard of a task: the first digits of its id, without hyphens.
    #[must_use]
    pub fn shard_of(self, id: &TaskId) -> Shard {
        Shard(id.to_string().chars().filter(|c| *c != '-').take(usize::from(self.0)).collect())
    }

    /// Returns all shards in order.
    #[must_use]
    pub fn all(self) -> Vec<Shard> {
        (0..self.count()).map(|number| self.nth(number)).collect()
    }

    /// Parses the name of a shard, which must have the right number of hex digits.
    pub fn parse(self, text: &str) -> Result<Shard> {
        let digits = usize::from(self.0);
        let is_hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if text.len() != digits || !is_hex {
            let (example, plural) = (self.nth(1), if digits == 1 { "" } else { "s" });
            return Err(Error::invalid(format!(
                "`{text}` is not a shard of this queue; use {digits} lower-case hex digit{plural}, like {example}"
            )));
        }
        Ok(Shard(text.to_owned()))
    }

    /// Parses an inclusive range such as `00-3f`.
    pub fn parse_range(self, text: &str) -> Result<Vec<Shard>> {
        let Some((first, last)) = text.split_once('-') else {
            return Err(Error::invalid(format!("`{text}` is not a shard range; use a range like 0-7")));
        };
        let (first, last) = (self.parse(first.trim())?, self.parse(last.trim())?);
        if first > last {
            return Err(Error::invalid(format!("shard range `{text}` is reversed; use {last}-{first}")));
        }
        Ok(self.all().into_iter().filter(|shard| (&first..=&last).contains(&shard)).collect())
    }

    fn nth(self, number: usize) -> Shard {
        Shard(format!("{number:0width$x}", width = usize::from(self.0)))
    }
}

/// Contiguous range of shards, both ends included. Its entries are adjacent in the index: one list returns them all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRange {
    /// First shard.
    pub first: Shard,
    /// Last shard.
    pub last: Shard,
}

impl ShardRange {
    /// Number of shards in the range.
    #[must_use]
    pub fn count(&self) -> usize {
        self.last.number() + 1 - self.first.number()
    }

    /// Returns the rest of the range from one of its shards on, chosen by `number` modulo the count.
    #[must_use]
    pub fn starting_at(&self, number: u64) -> Self {
        let nth = usize::try_from(number % self.count() as u64).unwrap_or(0);
        let (digits, first) = (self.first.0.len(), self.first.number() + nth);
        Self { first: Shard(format!("{first:0digits$x}")), last: self.last.clone() }
    }

    /// True if the shard is in the range.
    #[must_use]
    pub fn contains(&self, shard: &Shard) -> bool {
        (&self.first..=&self.last).contains(&shard)
    }
}

impl fmt::Display for ShardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl ShardLen {
    /// Returns the groups that are leased as one. Renewals are the cost of leasing and must not grow with the number of
    /// shards. Up to [`GROUPS_MAX`] shards, each is its own group.
    #[must_use]
    pub fn groups(self) -> Vec<ShardRange> {
        let size = self.count().div_ceil(GROUPS_MAX);
        let group = |number: usize| ShardRange {
            first: self.nth(number * size),
            last: self.nth((number + 1) * size - 1),
        };
        (0..self.count() / size).map(group).collect()
    }

    /// Returns the fewest ranges that contain exactly these shards.
    #[must_use]
    pub fn ranges(self, shards: impl IntoIterator<Item = Shard>) -> Vec<ShardRange> {
        self.merge_ranges(shards.into_iter().map(|shard| ShardRange { first: shard.clone(), last: shard }))
    }

    /// Joins adjacent and overlapping ranges.
    #[must_use]
    pub fn merge_ranges(self, ranges: impl IntoIterator<Item = ShardRange>) -> Vec<ShardRange> {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort();
        let mut joined: Vec<ShardRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(before) if range.first.number() <= before.last.number() + 1 => {
                    before.last = before.last.clone().max(range.last);
                }
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Returns all shards as one range.
    #[must_use]
    pub fn full_range(self) -> ShardRange {
        ShardRange { first: self.nth(0), last: self.nth(self.count() - 1) }
    }
}

impl Shard {
    fn number(&self) -> usize {
        usize::from_str_radix(&self.0, 16).unwrap_or(0)
    }
}

impl TryFrom<u8> for ShardLen {
    type Error = Error;

    fn try_from(digits: u8) -> Result<Self> {
        Self::new(digits)
    }
}

impl From<ShardLen> for u8 {
    fn from(len: ShardLen) -> Self {
        len.0
    }
}

/// Name of a shard: its hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shard(String);

impl Shard {
    /// Returns the shard named in a key, if it can be a shard of this task: the id never changes, but the number of
    /// digits can.
    pub(crate) fn of(id: &TaskId, text: &str) -> Option<Self> {
        let len = u8::try_from(text.len()).ok().and_then(|digits| ShardLen::new(digits).ok())?;
        Some(len.shard_of(id)).filter(|shard| shard.as_str() == text)
    }

    /// Number of digits.
    #[must_use]
    pub fn len(&self) -> ShardLen {
        // One byte per digit, and no shard has more than four.
        ShardLen(self.0.len().try_into().unwrap_or(u8::MAX))
    }

    /// Returns the digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(digits: u8) -> ShardLen {
        ShardLen::new(digits).unwrap()
    }

    #[test]
    fn groups_cover_every_shard_once_and_are_never_more_than_64() {
        for (digits, groups, size) in [(1, 16, 1), (2, 64, 4), (3, 64, 64), (4, 64, 1_024)] {
            let all = len(digits).groups();
            assert_eq!(all.len(), groups);
            assert_eq!(len(digits).merge_ranges(all.clone()), [len(digits).full_range()]);
            for shard in len(digits).all().into_iter().step_by(size) {
                assert_eq!(all.iter().filter(|group| group.contains(&shard)).count(), 1);
            }
        }
    }

    #[test]
    fn neighbours_are_joined() {
        let shards = ["00", "01", "ff", "03", "02", "20", "02"].map(|name| len(2).parse(name).unwrap());
        let ranges: Vec<_> = len(2).ranges(shards).iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["00-03", "20", "ff"]);
        assert!(len(2).ranges([]).is_empty());
        let range = len(2).ranges(len(2).parse_range("08-0b").unwrap()).remove(0);
        assert_eq!(
            (range.count(), range.starting_at(6).to_string(), range.starting_at(7).to_string()),
            (4, "0a-0b".into(), "0b".into())
        );
    }

    #[test]
    fn a_shard_is_the_beginning_of_the_id_without_hyphens() {
        let id: TaskId = "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3".parse().unwrap();
        let shards: Vec<_> = (1..=4).map(|digits| len(digits).shard_of(&id).to_string()).collect();
        assert_eq!(shards, ["3", "3f", "3f2", "3f2c"]);
    }

    #[test]
    fn all_shards_are_listed_in_order() {
        for (digits, count, first, last) in
            [(1, 16, "0", "f"), (2, 256, "00", "ff"), (3, 4_096, "000", "fff")]
        {
            let all = len(digits).all();
            assert_eq!((all.len(), all[0].as_str(), all[count - 1].as_str()), (count, first, last));
            assert!(all.is_sorted());
        }
        assert_eq!(len(4).count(), 65_536);
    }

    #[test]
    fn wrong_lengths_shards_and_ranges_are_explained() {
        let errors = [
            ShardLen::new(0).unwrap_err(),
            ShardLen::new(5).unwrap_err(),
            len(2).parse("x").unwrap_err(),
            len(2).parse("FF").unwrap_err(),
            len(1).parse("00").unwrap_err(),
            len(2).parse_range("3f-00").unwrap_err(),
            len(2).parse_range("00").unwrap_err(),
        ];
        insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"), @r"
        shard_prefix_len must be 1 to 4, got 0
        shard_prefix_len must be 1 to 4, got 5
        `x` is not a shard of this queue; use 2 lower-case hex digits, like 01
        `FF` is not a shard of this queue; use 2 lower-case hex digits, like 01
        `00` is not a shard of this queue; use 1 lower-case hex digit, like 1
        shard range `3f-00` is reversed; use 00-3f
        `00` is not a shard range; use a range like 0-7
        ");
        assert_eq!(len(2).parse_range("00-3f").unwrap().len(), 64);
        assert_eq!(len(1).parse_range("a-a").unwrap(), [Shard("a".into())]);
    }

    #[test]
    fn ten_thousand_ids_spread_evenly() {
        let mut bits = 1u128;
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..10_000 {
            // A linear congruential generator: good enough to fill ids, and always the same.
            bits = bits.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
            *counts.entry(len(2).shard_of(&TaskId::from_random(bits))).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 256);
        // 39 on average; beyond six standard deviations something is wrong.
        assert!(counts.values().all(|count| (5..80).contains(count)), "{counts:?}");
    }
}
