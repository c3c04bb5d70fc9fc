//! `leasehold shards`: shows which worker holds which shards, as a map, as counts and as a table.

use leasehold_core::{ShardRange, WorkerId};
use leasehold_queue::{LeaseInfo, LeaseState, ObjectQueue};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

use crate::printer::{Printer, Style, line};
use crate::table::{Cell, TextTable, count, moment};

/// Number of groups in a row of the map, and in a block without spaces.
const MAP_COLUMNS: usize = 16;
const MAP_BLOCK: usize = 4;
/// Marks on the map, one for each worker that can hold a group: there are at most 64.
const MARKS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@&";

type Group = (ShardRange, LeaseInfo);

pub(crate) async fn run(queue: &ObjectQueue, printer: &Printer) -> anyhow::Result<()> {
    let groups = queue.shard_leases().await?;
    if printer.is_json() {
        for group in &groups {
            print_json(group);
        }
        return Ok(());
    }
    let marks = Marks::new(&groups);
    line(summary(&groups));
    line("");
    print_map(&groups, &marks, printer);
    line("");
    print_legend(&groups, &marks, printer);
    line("");
    print_groups(queue, &groups, printer)
}

fn print_json((group, seen): &Group) {
    let lease = seen.lease.as_ref();
    line(json!({
        "shards": group.to_string(),
        "first": group.first,
        "last": group.last,
        "count": group.count(),
        "state": seen.state.name(),
        "worker_id": seen.holder(),
        "instance": seen.holder().and(lease).map(|lease| &lease.instance),
        "epoch": lease.map(|lease| lease.epoch),
        "until": seen.holder().and(lease).map(|lease| lease.expires_at),
    }));
}

fn summary(groups: &[Group]) -> String {
    let shards: usize = groups.iter().map(|(group, _)| group.count()).sum();
    let held = groups.iter().filter(|(_, seen)| seen.state == LeaseState::Held);
    let holders: BTreeSet<_> = held.clone().filter_map(|(_, seen)| seen.holder()).collect();
    let workers = count(holders.len() as u64, "worker", "workers");
    let leased = format!("{} of {} held by {workers}", held.count(), groups.len());
    match shards / groups.len() {
        1 => format!("{shards} shards, each with its own lease: {leased}"),
        size => format!("{shards} shards, leased in groups of {size}: {leased}"),
    }
}

/// Letter and colour of each worker on the map.
struct Marks(BTreeMap<WorkerId, usize>);

impl Marks {
    fn new(groups: &[Group]) -> Self {
        let held = groups.iter().filter(|(_, seen)| seen.state == LeaseState::Held);
        let workers: BTreeSet<_> = held.filter_map(|(_, seen)| seen.holder().cloned()).collect();
        Self(workers.into_iter().enumerate().map(|(number, worker)| (worker, number)).collect())
    }

    fn of(&self, seen: &LeaseInfo) -> Cell {
        match (seen.state, seen.holder().and_then(|worker| self.0.get(worker))) {
            (LeaseState::Held, Some(number)) => Self::numbered(*number),
            (LeaseState::Expired, _) => Cell::new(Style::Bad, "!"),
            (LeaseState::Corrupt, _) => Cell::new(Style::Bad, "?"),
            _ => Cell::from("."),
        }
    }

    fn numbered(number: usize) -> Cell {
        Cell::new(Style::Tint(number), char::from(MARKS[number % MARKS.len()]))
    }
}

fn print_map(groups: &[Group], marks: &Marks, printer: &Printer) {
    for row in groups.chunks(MAP_COLUMNS) {
        let blocks = row
            .chunks(MAP_BLOCK)
            .map(|block| block.iter().map(|(_, seen)| marks.of(seen).painted(printer)).collect::<String>());
        let first = row.first().map_or(String::new(), |(group, _)| group.first.to_string());
        line(format_args!(
            "{}  {}",
            printer.paint(Style::Strong, &first),
            blocks.collect::<Vec<_>>().join(" ")
        ));
    }
}

fn print_legend(groups: &[Group], marks: &Marks, printer: &Printer) {
    let row = |mark: Cell, name: &str, has: &dyn Fn(&LeaseInfo) -> bool| {
        let those = groups.iter().filter(|(_, seen)| has(seen));
        let shards: usize = those.clone().map(|(group, _)| group.count()).sum();
        vec![mark, name.into(), those.count().into(), shards.into()]
    };
    let mut rows: Vec<_> = marks
        .0
        .iter()
        .map(|(worker, number)| {
            let is_held = |seen: &LeaseInfo| seen.state == LeaseState::Held && seen.holder() == Some(worker);
            row(Marks::numbered(*number), worker.as_str(), &is_held)
        })
        .collect();
    let rest = [
        (".", Style::Plain, LeaseState::Free),
        ("!", Style::Bad, LeaseState::Expired),
        ("?", Style::Bad, LeaseState::Corrupt),
    ];
    for (mark, style, state) in rest {
        if groups.iter().any(|(_, seen)| seen.state == state) {
            rows.push(row(Cell::new(style, mark), &format!("({})", state.name()), &|seen| {
                seen.state == state
            }));
        }
    }
    TextTable::default()
        .left("", 1)
        .left("WORKER", 0)
        .right("GROUPS", 0)
        .right("SHARDS", 0)
        .rows(&rows, printer);
}

fn print_groups(queue: &ObjectQueue, groups: &[Group], printer: &Printer) -> anyhow::Result<()> {
    let now = queue.now()?.earliest;
    let rows: Vec<_> = groups
        .iter()
        .map(|(group, seen)| {
            let lease = seen.lease.as_ref();
            let until = seen.holder().and(lease).map(|lease| moment(lease.expires_at, now));
            vec![
                group.into(),
                state_cell(seen.state, seen.state.name()),
                seen.holder().map_or("-".into(), Cell::from),
                lease.map_or("-".into(), |lease| lease.epoch.into()),
                until.map_or("-".into(), Cell::from),
            ]
        })
        .collect();
    let table = TextTable::default().left("SHARDS", 0).left("STATE", 7).left("HOLDER", 0).right("EPOCH", 0);
    table.left("UNTIL (UTC)", 0).rows(&rows, printer);
    Ok(())
}

/// State of a lease in its colour.
pub(super) fn state_cell(state: LeaseState, word: &str) -> Cell {
    let style = match state {
        LeaseState::Free => Style::Plain,
        LeaseState::Held => Style::Good,
        LeaseState::Expired | LeaseState::Corrupt => Style::Bad,
    };
    Cell::new(style, word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_unique_mark() {
        let marks: BTreeSet<_> = MARKS.iter().collect();
        assert_eq!(marks.len(), leasehold_core::shard::GROUPS_MAX);
        assert!(b".!?".iter().all(|mark| !marks.contains(mark)));
        assert_eq!(Marks::numbered(0).painted(&Printer::coloured()), "\u{1b}[36ma\u{1b}[0m");
        assert_eq!(Marks::numbered(63).painted(&Printer::new(false)), "&");
    }
}
