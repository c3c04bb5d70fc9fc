//! Which tasks a list shows, in which order.

use std::cmp::Ordering;
use std::fmt::Write;

use leasehold_core::{Error, Result, Status, StoreTime};
use serde::Deserialize;

use crate::table::{Row, Table};

/// Most tasks of one answer, and as many as there are if nobody says.
const LIMIT_MAX: usize = 200;
const LIMIT: usize = 50;

/// What a viewer asks for, as it comes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Asked {
    status: Option<String>,
    #[serde(rename = "type")]
    task_type: Option<String>,
    tag: Option<String>,
    q: Option<String>,
    sort: Option<String>,
    order: Option<String>,
    offset: Option<usize>,
    limit: Option<usize>,
}

/// The same, understood.
#[derive(Debug)]
pub(crate) struct Query {
    standing: Option<Standing>,
    task_type: Option<String>,
    tag: Option<String>,
    words: Option<String>,
    sort: Sort,
    is_ascending: bool,
    pub(crate) offset: usize,
    limit: usize,
}

/// Where a task stands: by status, and pending ones by whether they are due.
#[derive(Debug, Clone, Copy)]
enum Standing {
    Status(Status),
    Due,
    Scheduled,
}

#[derive(Debug, Clone, Copy)]
enum Sort {
    Updated,
    Created,
    Waiting,
}

impl Query {
    pub(crate) fn read(asked: Asked) -> Result<Self> {
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let standing = match asked.status.as_deref().unwrap_or_default() {
            "" => None,
            "due" => Some(Standing::Due),
            "scheduled" => Some(Standing::Scheduled),
            status => Some(Standing::Status(Status::parse(status)?)),
        };
        let sort = match asked.sort.as_deref().unwrap_or_default() {
            "" | "updated" => Sort::Updated,
            "created" => Sort::Created,
            "waiting" => Sort::Waiting,
            other => return Err(not_one_of("sort", other, "updated, created, waiting")),
        };
        let is_ascending = match asked.order.as_deref().unwrap_or_default() {
            "" | "desc" => false,
            "asc" => true,
            other => return Err(not_one_of("order", other, "desc, asc")),
        };
        Ok(Self {
            standing,
            task_type: some(asked.task_type),
            tag: some(asked.tag),
            words: some(asked.q),
            sort,
            is_ascending,
            offset: asked.offset.unwrap_or(0),
            limit: asked.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
        })
    }

    /// The tasks of this page, and how many fit in all.
    pub(crate) fn page<'a>(&self, table: &'a Table, now: StoreTime) -> (usize, Vec<&'a Row>) {
        let mut rows = self.all(table, now);
        let total = rows.len();
        let end = self.offset.saturating_add(self.limit).min(total);
        if self.offset >= total {
            return (total, Vec::new());
        }
        // Only as far as the page goes: sorting a quarter of a million rows takes its time.
        rows.select_nth_unstable_by(end - 1, |a, b| self.compare(a, b));
        rows.truncate(end);
        rows.sort_unstable_by(|a, b| self.compare(a, b));
        (total, rows.split_off(self.offset))
    }

    /// All tasks that fit, in no order.
    pub(crate) fn all<'a>(&self, table: &'a Table, now: StoreTime) -> Vec<&'a Row> {
        let mut id = String::new();
        table.rows().filter(|row| self.fits(row, now, &mut id)).collect()
    }

    fn fits(&self, row: &Row, now: StoreTime, id: &mut String) -> bool {
        let stands = match self.standing {
            None => row.status != Status::Purged,
            Some(Standing::Status(status)) => row.status == status,
            Some(Standing::Due) => row.is_due(now),
            Some(Standing::Scheduled) => row.available_at.is_some() && !row.is_due(now),
        };
        stands
            && self.task_type.as_deref().is_none_or(|wanted| *row.task_type == *wanted)
            && self.tag.as_deref().is_none_or(|tag| has_tag(row, tag))
            && self.words.as_deref().is_none_or(|words| mentions(row, words, id))
    }

    fn compare(&self, a: &Row, b: &Row) -> Ordering {
        let order = match self.sort {
            Sort::Updated => a.updated_at.cmp(&b.updated_at),
            Sort::Created => a.created_at.cmp(&b.created_at),
            // Who waits for longest was to start first; who does not wait at all comes last in either order.
            Sort::Waiting => match (a.available_at, b.available_at) {
                (Some(a), Some(b)) => b.cmp(&a),
                (None, None) => Ordering::Equal,
                (a, b) => return b.is_some().cmp(&a.is_some()),
            },
        };
        let order = if self.is_ascending { order } else { order.reverse() };
        order.then_with(|| a.id.cmp(&b.id))
    }
}

fn not_one_of(what: &str, other: &str, there_are: &str) -> Error {
    Error::invalid(format!("`{other}` is not a {what}; there are {there_are}"))
}

/// Whether it has this tag: a key, or a key and its value with a colon between them. Both may have colons in them.
fn has_tag(row: &Row, tag: &str) -> bool {
    row.tags.iter().any(|(key, value)| match tag.strip_prefix(key.as_str()) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(':') == Some(value),
        None => false,
    })
}

/// Whether the words are part of the id, the type, the worker, the key, a tag, the input or the error. `id` is room to
/// write the id into.
fn mentions(row: &Row, words: &str, id: &mut String) -> bool {
    id.clear();
    // Writing to a string cannot fail.
    let _ = write!(id, "{}", row.id);
    let has = |text: &str| contains(text, words);
    has(id)
        || has(&row.task_type)
        || row.worker.as_deref().is_some_and(has)
        || row.error.as_deref().is_some_and(has)
        || row.key.as_deref().is_some_and(has)
        || row.tags.iter().any(|(key, value)| has(key) || has(value) || begins(key, value, words))
        || has(&row.input)
}

/// Whether a tag begins with these words, as tags are written: `team=photos`, or `team:photos` in an address.
fn begins(key: &str, value: &str, words: &str) -> bool {
    let rest =
        words.get(..key.len()).filter(|start| start.eq_ignore_ascii_case(key)).map(|_| &words[key.len()..]);
    let wanted = rest.and_then(|rest| rest.strip_prefix(['=', ':']));
    wanted.is_some_and(|wanted| {
        value.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
    })
}

/// Whether a text holds these words, in capitals or not.
fn contains(text: &str, words: &str) -> bool {
    text.as_bytes().windows(words.len().max(1)).any(|part| part.eq_ignore_ascii_case(words.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capitals_do_not_matter_in_a_search() {
        assert!(contains("Connection refused", "REFUSED"));
        assert!(!contains("short", "shorter"));
        assert!(contains("naïve Größe", "größe"));
    }

    #[test]
    fn a_tag_is_found_by_its_key_and_the_beginning_of_its_value() {
        for words in ["team=photos", "team:photos", "TEAM=Pho", "team="] {
            assert!(begins("team", "photos", words), "{words}");
        }
        for words in ["team", "tea=photos", "team=hotos", "team=photos!", "steam=photos", "té"] {
            assert!(!begins("team", "photos", words), "{words}");
        }
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let read = |asked: Asked| Query::read(asked).unwrap_err().to_string();
        assert!(
            read(Asked { status: Some("asleep".into()), ..Asked::default() })
                .contains("`asleep` is not a status")
        );
        let sort = read(Asked { sort: Some("size".into()), ..Asked::default() });
        assert_eq!(sort, "`size` is not a sort; there are updated, created, waiting");
    }
}
