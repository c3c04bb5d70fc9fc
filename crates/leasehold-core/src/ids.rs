//! Ids and names of tasks, workers, claims, writes and artifacts. Random bits are passed in: this crate generates none.

use crate::error::{Error, Reason, Result};
use crate::limits::NAME_BYTES_MAX;
use crate::time::StoreTime;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use uuid::Uuid;

/// Name of 128 random bits, written as 32 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HexName(String);

impl HexName {
    /// Creates a name from random bits.
    #[must_use]
    pub fn from_random(bits: u128) -> Self {
        Self(hex(&bits.to_be_bytes()))
    }

    /// Returns the name as text.
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

/// Id of one write. Every conditional write of a record has a new one, so that the writer recognises its own bytes
/// after a lost answer. It also makes otherwise equal records differ, because stores derive versions from content.
pub type WriteId = HexName;

/// Id of one claim, known only to the worker that holds the task or held it. The name is that of the record's field
/// `lease_id`; leases on shards and inboxes have an instance instead.
pub type LeaseId = HexName;

/// Id of a task: a UUID. In the object layout it is random, so that tasks spread evenly over the shards; in the journal it
/// begins with the time of its submit, so that tasks that were submitted together are stored together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Uuid);

impl TaskId {
    /// Creates an id from random bits.
    #[must_use]
    pub fn from_random(bits: u128) -> Self {
        Self(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid())
    }

    /// Creates an id that sorts by time (a UUID of version 7), from a time and 74 random bits.
    #[must_use]
    pub fn from_time(at: StoreTime, bits: u128) -> Self {
        let millis = u64::try_from(at.as_millis()).unwrap_or(0);
        let [_, _, _, _, _, _, random @ ..] = bits.to_be_bytes();
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The smallest id.
    #[must_use]
    pub fn least() -> Self {
        Self(Uuid::nil())
    }

    /// Time of an id that sorts by time; none for any other id.
    #[must_use]
    pub fn time(&self) -> Option<StoreTime> {
        let millis = i64::try_from(self.0.as_u128() >> 80).ok()?;
        (self.0.get_version_num() == 7).then(|| StoreTime::from_millis(millis))
    }

    /// All bits of the id.
    #[must_use]
    pub(crate) fn bits(&self) -> u128 {
        self.0.as_u128()
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(PhantomData))
    }
}

/// Parses text without a copy of it: a replay reads millions of ids.
pub(crate) struct FromText<T>(pub(crate) PhantomData<T>);

impl<T: FromStr<Err = Error>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl From<TaskId> for String {
    fn from(id: TaskId) -> Self {
        id.to_string()
    }
}

impl FromStr for TaskId {
    type Err = Error;

    /// Accepts only the canonical form: one task has one key.
    fn from_str(text: &str) -> Result<Self> {
        let is_canonical = |id: &Uuid| *id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *text;
        let id = Uuid::try_parse(text).ok().filter(is_canonical).map(Self);
        id.ok_or_else(|| {
            let example = "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3";
            Error::invalid(format!("`{text}` is not a task id; use an id like {example}"))
        })
    }
}

/// First characters of a task id: at least four, as many as a shard name can have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskIdPrefix(String);

impl TaskIdPrefix {
    /// Minimum length. Fewer characters do not determine the shard in every queue.
    pub const CHARS_MIN: usize = 4;

    /// Returns the characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Smallest id that begins with these characters.
    pub(crate) fn first_id(&self) -> TaskId {
        let nil = TaskId(Uuid::nil()).to_string();
        let padded = format!("{}{}", self.0, &nil[self.0.len()..]);
        padded.parse().expect("a prefix was checked to be part of an id")
    }

    /// Largest id that begins with these characters.
    pub(crate) fn last_id(&self) -> TaskId {
        let max = TaskId(Uuid::max()).to_string();
        let padded = format!("{}{}", self.0, &max[self.0.len()..]);
        padded.parse().expect("a prefix was checked to be part of an id")
    }

    /// True if the id begins with these characters.
    #[must_use]
    pub fn matches(&self, id: &TaskId) -> bool {
        id.to_string().starts_with(&self.0)
    }

    /// Returns the only id of `found`; an error if there is none or more than one.
    pub fn resolve(&self, found: &BTreeSet<TaskId>) -> Result<TaskId> {
        let mut ids = found.iter();
        match (ids.next(), ids.next()) {
            (Some(id), None) => Ok(*id),
            (Some(one), Some(other)) => Err(Error::invalid(format!(
                "task id `{}` is ambiguous: {one} and {other} begin with it; use more characters",
                self.0
            ))),
            (None, _) => {
                Err(Error::invalid(format!("no task id begins with `{}`", self.0))
                    .with_reason(Reason::Missing))
            }
        }
    }
}

impl FromStr for TaskIdPrefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        const REST: &str = "00000000-0000-4000-8000-000000000000";
        let is_short = text.is_ascii() && (Self::CHARS_MIN..REST.len()).contains(&text.len());
        if is_short && format!("{text}{}", &REST[text.len()..]).parse::<TaskId>().is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!(
            "`{text}` is not a task id; use an id like 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3, or at least its first {} \
             characters",
            Self::CHARS_MIN
        )))
    }
}

impl TryFrom<String> for TaskIdPrefix {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TaskIdPrefix> for String {
    fn from(prefix: TaskIdPrefix) -> Self {
        prefix.0
    }
}

/// Id of an artifact: the hash of its bytes. 64 hex digits of BLAKE3, or `sha256-` and 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArtifactId(String);

/// Prefix of ids that are SHA-256 hashes.
const SHA_256: &str = "sha256-";

impl ArtifactId {
    /// Creates an id from a BLAKE3 hash.
    #[must_use]
    pub fn blake3(hash: [u8; 32]) -> Self {
        Self(hex(&hash))
    }

    /// Creates an id from a SHA-256 hash.
    #[must_use]
    pub fn sha256(hash: [u8; 32]) -> Self {
        Self(format!("{SHA_256}{}", hex(&hash)))
    }

    /// True for a SHA-256 hash.
    #[must_use]
    pub fn is_sha256(&self) -> bool {
        self.0.starts_with(SHA_256)
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ArtifactId {
    type Err = Error;

    /// Accepts only the canonical form: one artifact has one key.
    fn from_str(text: &str) -> Result<Self> {
        let digits = text.strip_prefix(SHA_256).unwrap_or(text);
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() == 64 && digits.bytes().all(is_hex) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!(
            "`{}` is not an artifact hash; use 64 hex digits (0-9, a-f), with the prefix `sha256-` for SHA-256",
            text.escape_debug()
        )))
    }
}

impl TryFrom<String> for ArtifactId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ArtifactId> for String {
    fn from(id: ArtifactId) -> Self {
        id.0
    }
}

impl fmt::Display for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Lower-case hex digits of bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    let mut text = String::with_capacity(2 * bytes.len());
    text.extend(digits);
    text
}

/// User-chosen name of a node, task type or queue, or worker id: letters, digits, `-`, `_`, `.`; at most 128 bytes; not
/// starting with a dot. It can be part of any key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Id of a worker.
pub type WorkerId = Name;

/// Type of a task, which selects the handler that runs it.
pub type TaskType = Name;

/// A set of task types.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTypes(Option<BTreeSet<TaskType>>);

impl TaskTypes {
    /// All task types.
    #[must_use]
    pub fn all() -> Self {
        Self(None)
    }

    /// True if a type is included.
    #[must_use]
    pub fn contains(&self, task_type: &TaskType) -> bool {
        self.0.as_ref().is_none_or(|types| types.contains(task_type))
    }

    /// The types; none if all are included.
    #[must_use]
    pub fn names(&self) -> Option<Vec<TaskType>> {
        self.0.as_ref().map(|types| types.iter().cloned().collect())
    }
}

impl FromIterator<TaskType> for TaskTypes {
    fn from_iter<I: IntoIterator<Item = TaskType>>(types: I) -> Self {
        Self(Some(types.into_iter().collect()))
    }
}

/// Artifacts by name, as a handler receives them. Each name is a valid file name.
pub type Artifacts = BTreeMap<Name, ArtifactId>;

impl Name {
    /// Validates a name; `what` is the subject of the error message.
    pub fn checked(what: &str, text: &str) -> Result<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fault = if text.is_empty() {
            "must not be empty".to_owned()
        } else if text.len() > NAME_BYTES_MAX {
            format!("must be at most {NAME_BYTES_MAX} bytes, got {}", text.len())
        } else if text.starts_with('.') {
            format!("`{text}` must not start with a dot")
        } else if !text.bytes().all(plain) {
            format!("`{}` must have only letters, digits, `-`, `_` and `.`", text.escape_debug())
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(Error::invalid(format!("{what} {fault}")))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::checked("name", &text)
    }
}

/// Finds the value with this name; the error lists all names.
pub fn parse_name<T: Copy>(what: &str, text: &str, names: &[(&str, T)]) -> Result<T> {
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|(name, _)| *name).collect();
        Error::invalid(format!("unknown {what} `{text}`; use {}", names.join(" or ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_characters_of_an_id_name_one_task_or_none() {
        let id = |text: &str| text.parse::<TaskId>().unwrap();
        let (one, other) =
            (id("3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"), id("3f2c9a4e-ffff-4c6f-9a57-2e8b6f10c4d3"));
        let only = |prefix: &str, ids: &[TaskId]| {
            let prefix: TaskIdPrefix = prefix.parse().unwrap();
            prefix.resolve(&ids.iter().copied().filter(|id| prefix.matches(id)).collect())
        };
        assert_eq!(only("3f2c9a4e-0", &[one, other]).unwrap(), one);
        assert_eq!(only("3f2c", &[one]).unwrap(), one);
        let ambiguous = only("3f2c", &[one, other]).unwrap_err().to_string();
        assert_eq!(
            ambiguous,
            format!("task id `3f2c` is ambiguous: {one} and {other} begin with it; use more characters")
        );
        assert_eq!(only("3f2d", &[one, other]).unwrap_err().reason(), Some(Reason::Missing));
        for wrong in
            ["", "3f2", "3F2C", "3f2c9a4e0", "3f2c9a4e-0d1b-", "3f2c-", "3f2g", "é3f2c", &one.to_string()]
        {
            assert_eq!(wrong.parse::<TaskIdPrefix>().is_ok(), wrong == "3f2c9a4e-0d1b-", "{wrong}");
        }
    }

    #[test]
    fn task_ids_have_one_form() {
        let id = TaskId::from_random(u128::MAX);
        assert_eq!(id.to_string().parse::<TaskId>().unwrap(), id);
        let text = id.to_string();
        for wrong in
            [text.to_uppercase(), text.replace('-', ""), format!("{{{text}}}"), "x".into(), String::new()]
        {
            assert!(wrong.parse::<TaskId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_with_a_time_sort_by_it() {
        let at = |millis| TaskId::from_time(StoreTime::from_millis(millis), u128::MAX / 3);
        assert!(at(1_700_000_000_000) < at(1_700_000_000_001));
        assert_eq!(at(1_700_000_000_007).time(), Some(StoreTime::from_millis(1_700_000_000_007)));
        assert_eq!(at(5).to_string(), "00000000-0005-7555-9555-555555555555");
        assert_eq!(at(5).to_string().parse::<TaskId>().unwrap(), at(5));
        assert_eq!(TaskId::from_random(7).time(), None);
    }

    #[test]
    fn invalid_names_are_explained() {
        for (text, message) in [
            ("", "task type must not be empty"),
            (".x", "task type `.x` must not start with a dot"),
            ("a/b", "task type `a/b` must have only letters, digits, `-`, `_` and `.`"),
            ("ä", "task type `ä` must have only letters, digits, `-`, `_` and `.`"),
        ] {
            assert_eq!(Name::checked("task type", text).unwrap_err().to_string(), message);
        }
        let long = Name::checked("worker id", &"x".repeat(129)).unwrap_err();
        assert_eq!(long.to_string(), "worker id must be at most 128 bytes, got 129");
        assert_eq!(Name::checked("task type", "resize_image.v2-x").unwrap().as_str(), "resize_image.v2-x");
    }
}
