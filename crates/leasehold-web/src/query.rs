//! Filter and order of a task list.

use std::cmp::Ordering;
use std::fmt::Write;

use leasehold_core::{Error, Result, Status, StoreTime};
use serde::Deserialize;

use crate::table::{Row, TaskTable};

/// Largest number of tasks in one response.
const LIMIT_MAX: usize = 200;
/// Default number of tasks in one response.
const LIMIT: usize = 50;

/// Query parameters, as received.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QueryParams {
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

/// Validated query.
#[derive(Debug)]
pub(crate) struct Query {
    status: Option<StatusFilter>,
    task_type: Option<String>,
    tag: Option<String>,
    search: Option<String>,
    sort: Sort,
    is_ascending: bool,
    pub(crate) offset: usize,
    limit: usize,
}

/// Status to filter by; pending is split into due and scheduled.
#[derive(Debug, Clone, Copy)]
enum StatusFilter {
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
    pub(crate) fn parse(params: QueryParams) -> Result<Self> {
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let status = match params.status.as_deref().unwrap_or_default() {
            "" => None,
            "due" => Some(StatusFilter::Due),
            "scheduled" => Some(StatusFilter::Scheduled),
            status => Some(StatusFilter::Status(Status::parse(status)?)),
        };
        let sort = match params.sort.as_deref().unwrap_or_default() {
            "" | "updated" => Sort::Updated,
            "created" => Sort::Created,
            "waiting" => Sort::Waiting,
            other => return Err(not_one_of("sort", other, "updated, created, waiting")),
        };
        let is_ascending = match params.order.as_deref().unwrap_or_default() {
            "" | "desc" => false,
            "asc" => true,
            other => return Err(not_one_of("order", other, "desc, asc")),
        };
        Ok(Self {
            status,
            task_type: some(params.task_type),
            tag: some(params.tag),
            search: some(params.q),
            sort,
            is_ascending,
            offset: params.offset.unwrap_or(0),
            limit: params.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
        })
    }

    /// Returns the total number of matching tasks, and the tasks of this page.
    pub(crate) fn page<'a>(&self, table: &'a TaskTable, now: StoreTime) -> (usize, Vec<&'a Row>) {
        let mut rows = self.all(table, now);
        let total = rows.len();
        let end = self.offset.saturating_add(self.limit).min(total);
        if self.offset >= total {
            return (total, Vec::new());
        }
        // Sorts only up to the end of the page: sorting a quarter of a million rows is slow.
        rows.select_nth_unstable_by(end - 1, |a, b| self.compare(a, b));
        rows.truncate(end);
        rows.sort_unstable_by(|a, b| self.compare(a, b));
        (total, rows.split_off(self.offset))
    }

    /// Returns all matching tasks, unordered.
    pub(crate) fn all<'a>(&self, table: &'a TaskTable, now: StoreTime) -> Vec<&'a Row> {
        let mut id = String::new();
        table.rows().filter(|row| self.fits(row, now, &mut id)).collect()
    }

    fn fits(&self, row: &Row, now: StoreTime, id: &mut String) -> bool {
        let has_status = match self.status {
            None => row.status != Status::Purged,
            Some(StatusFilter::Status(status)) => row.status == status,
            Some(StatusFilter::Due) => row.is_due(now),
            Some(StatusFilter::Scheduled) => row.available_at.is_some() && !row.is_due(now),
        };
        has_status
            && self.task_type.as_deref().is_none_or(|wanted| *row.task_type == *wanted)
            && self.tag.as_deref().is_none_or(|tag| has_tag(row, tag))
            && self.search.as_deref().is_none_or(|search| matches_search(row, search, id))
    }

    fn compare(&self, a: &Row, b: &Row) -> Ordering {
        let order = match self.sort {
            Sort::Updated => a.updated_at.cmp(&b.updated_at),
            Sort::Created => a.created_at.cmp(&b.created_at),
            // The task that has waited longest was due first; tasks that do not wait come last in either order.
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

fn not_one_of(what: &str, other: &str, allowed: &str) -> Error {
    Error::invalid(format!("`{other}` is not a valid {what}; use one of {allowed}"))
}

/// True if the task has this tag, given as `key` or `key:value`. Both may contain colons.
fn has_tag(row: &Row, tag: &str) -> bool {
    row.tags.iter().any(|(key, value)| match tag.strip_prefix(key.as_str()) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(':') == Some(value),
        None => false,
    })
}

/// True if the id, the type, the worker, the key, a tag, the input or the error contains the words. `id` is a buffer for
/// the text of the id.
fn matches_search(row: &Row, words: &str, id: &mut String) -> bool {
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

/// True if a tag, written as `team=photos` or `team:photos`, starts with these words.
fn begins(key: &str, value: &str, words: &str) -> bool {
    let rest =
        words.get(..key.len()).filter(|start| start.eq_ignore_ascii_case(key)).map(|_| &words[key.len()..]);
    let wanted = rest.and_then(|rest| rest.strip_prefix(['=', ':']));
    wanted.is_some_and(|wanted| {
        value.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
    })
}

/// True if a text contains these words, ignoring ASCII case.
fn contains(text: &str, words: &str) -> bool {
    text.as_bytes().windows(words.len().max(1)).any(|part| part.eq_ignore_ascii_case(words.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ignores_case() {
        assert!(contains("Connection refused", "REFUSED"));
        assert!(!contains("short", "shorter"));
        assert!(contains("naïve Größe", "größe"));
    }

    #[test]
    fn a_tag_is_found_by_its_key_and_a_prefix_of_its_value() {
        for words in ["team=photos", "team:photos", "TEAM=Pho", "team="] {
            assert!(begins("team", "photos", words), "{words}");
        }
        for words in ["team", "tea=photos", "team=hotos", "team=photos!", "steam=photos", "té"] {
            assert!(!begins("team", "photos", words), "{words}");
        }
    }

    #[test]
    fn an_invalid_parameter_is_named() {
        let read = |params: QueryParams| Query::parse(params).unwrap_err().to_string();
        assert!(
            read(QueryParams { status: Some("asleep".into()), ..QueryParams::default() })
                .contains("`asleep` is not a status")
        );
        let sort = read(QueryParams { sort: Some("size".into()), ..QueryParams::default() });
        assert_eq!(sort, "`size` is not a valid sort; use one of updated, created, waiting");
    }
}
