//! Columns for people: aligned, under a header, coloured on a terminal.
//!
//! A list is printed while it is read, so the widths of its columns are given beforehand; where all rows are known, the
//! columns grow to fit them. Nothing is ever cut: ids are there to be copied. Text is padded before it is painted,
//! because colours have no width. The last column is not padded, so that no line ends in spaces.

use leasehold_core::{Status, StoreTime};
use std::fmt;

use crate::printer::{Printer, Style, escaped, line};

/// As wide as a moment of another day.
pub(crate) const MOMENT: usize = 19;
const GAP: &str = "  ";

/// What stands in one row and column.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Control characters are escaped: a cell is one line, whatever a task has put into it.
    pub(crate) fn new(style: Style, text: impl fmt::Display) -> Self {
        Self { text: escaped(&text.to_string()).into_owned(), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    /// As it looks outside a table.
    pub(crate) fn painted(&self, printer: &Printer) -> String {
        printer.paint(self.style, &self.text)
    }
}

impl<T: fmt::Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Style::Plain, text)
    }
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Left,
    Right,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    width: usize,
    side: Side,
}

/// Columns, and how wide they are.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<Column>,
}

impl Table {
    /// A column of words, at least so wide.
    pub(crate) fn left(self, name: &'static str, width: usize) -> Self {
        self.with(name, width, Side::Left)
    }

    /// A column of numbers, at least so wide.
    pub(crate) fn right(self, name: &'static str, width: usize) -> Self {
        self.with(name, width, Side::Right)
    }

    fn with(mut self, name: &'static str, width: usize, side: Side) -> Self {
        self.columns.push(Column { name, width: width.max(name.len()), side });
        self
    }

    /// Prints the header.
    pub(crate) fn header(&self, printer: &Printer) {
        let names: Vec<_> = self.columns.iter().map(|column| Cell::new(Style::Strong, column.name)).collect();
        self.row(&names, printer);
    }

    /// Prints one row.
    pub(crate) fn row(&self, cells: &[Cell], printer: &Printer) {
        line(self.text(cells, printer));
    }

    fn text(&self, cells: &[Cell], printer: &Printer) -> String {
        let last = self.columns.len().saturating_sub(1);
        let padded = self.columns.iter().zip(cells).enumerate().map(|(number, (column, cell))| {
            let Cell { text, style } = cell;
            let width = column.width;
            let text = match column.side {
                Side::Right => format!("{text:>width$}"),
                Side::Left if number == last => text.clone(),
                Side::Left => format!("{text:<width$}"),
            };
            printer.paint(*style, &text)
        });
        padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    }

    /// Prints the header and all rows, each column as wide as it needs to be.
    pub(crate) fn rows(mut self, rows: &[Vec<Cell>], printer: &Printer) {
        for (number, column) in self.columns.iter_mut().enumerate() {
            let widest = rows.iter().filter_map(|row| row.get(number)).map(Cell::width).max();
            column.width = column.width.max(widest.unwrap_or(0));
        }
        self.header(printer);
        for row in rows {
            self.row(row, printer);
        }
    }
}

/// A moment in UTC, as short as can be: only the time of day if it is of the same day as `now`.
pub(crate) fn moment(at: StoreTime, now: StoreTime) -> String {
    let (at, now) = (at.to_string(), now.to_string());
    match at.trim_end_matches('Z').split_once('T') {
        Some((day, time)) if now.starts_with(day) => time.to_owned(),
        Some((day, time)) => format!("{day} {}", time.split('.').next().unwrap_or(time)),
        None => at,
    }
}

/// A status in its colour.
pub(crate) fn status(status: Status) -> Cell {
    Cell::new(colour(status), status)
}

/// The colour of a status: good and bad ends stand out, and what is going on.
pub(crate) fn colour(status: Status) -> Style {
    match status {
        Status::Completed => Style::Good,
        Status::Failed | Status::Expired => Style::Bad,
        Status::Running => Style::Strong,
        Status::Pending | Status::Cancelled | Status::Purged => Style::Plain,
    }
}

/// A number of things, in words.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_today_is_only_a_time() {
        let time = |text: &str| text.parse::<StoreTime>().unwrap();
        let now = time("2026-03-01T00:00:00.001Z");
        assert_eq!(moment(time("2026-03-01T23:59:59.123Z"), now), "23:59:59.123");
        assert_eq!(moment(time("2026-02-28T23:59:59.123Z"), now), "2026-02-28 23:59:59");
        assert_eq!(moment(StoreTime::NEVER, now), "never");
        assert_eq!(moment(time("2026-02-28T23:59:59Z"), now).len(), MOMENT);
    }

    #[test]
    fn colours_have_no_width() {
        let table = Table::default().left("A", 6).right("B", 4).left("C", 9);
        let cells = [status(Status::Failed), Cell::new(Style::Good, 12), "end".into()];
        let coloured = table.text(&cells, &Printer::coloured());
        assert_eq!(coloured, "\u{1b}[31mfailed\u{1b}[0m  \u{1b}[32m  12\u{1b}[0m  end");
        assert_eq!(table.text(&cells, &Printer::new(false)), "failed    12  end");
        assert_eq!(
            table.text(&["much longer".into(), 1.into(), "".into()], &Printer::new(false)),
            "much longer     1"
        );
    }

    #[test]
    fn one_thing_is_not_many() {
        let tasks = |number| count(number, "task", "tasks");
        assert_eq!((tasks(0), tasks(1)), ("0 tasks".into(), "1 task".into()));
    }
}
