//! Tables: aligned columns with a header, coloured on a terminal.
//!
//! A list is printed while it is read, so the widths of its columns are given beforehand; where all rows are known, the
//! columns grow to fit them. Text is never cut: ids must stay complete, to be copied. Text is padded before it is painted,
//! because colours have no width. The last column is not padded, so that no line ends in spaces.

use leasehold_core::{Status, StoreTime};
use std::fmt;

use crate::printer::{Printer, Style, escaped, line};

/// Width of a time with a date.
pub(crate) const MOMENT: usize = 19;
const GAP: &str = "  ";

/// Cell of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Creates a cell. Escapes control characters: a cell is one line, whatever its data.
    pub(crate) fn new(style: Style, text: impl fmt::Display) -> Self {
        Self { text: escaped(&text.to_string()).into_owned(), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    /// Text of the cell in its style, without padding.
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

/// Columns and their widths.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    columns: Vec<Column>,
}

impl TextTable {
    /// Adds a left-aligned column with a minimum width.
    pub(crate) fn left(self, name: &'static str, width: usize) -> Self {
        self.with(name, width, Side::Left)
    }

    /// Adds a right-aligned column with a minimum width.
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

/// Time in UTC; without the date if it is on the same day as `now`.
pub(crate) fn moment(at: StoreTime, now: StoreTime) -> String {
    let (at, now) = (at.to_string(), now.to_string());
    match at.trim_end_matches('Z').split_once('T') {
        Some((day, time)) if now.starts_with(day) => time.to_owned(),
        Some((day, time)) => format!("{day} {}", time.split('.').next().unwrap_or(time)),
        None => at,
    }
}

/// Status in its colour.
pub(crate) fn status(status: Status) -> Cell {
    Cell::new(colour(status), status)
}

/// Colour of a status. Completed, failed, expired and running stand out.
pub(crate) fn colour(status: Status) -> Style {
    match status {
        Status::Completed => Style::Good,
        Status::Failed | Status::Expired => Style::Bad,
        Status::Running => Style::Strong,
        Status::Pending | Status::Cancelled | Status::Purged => Style::Plain,
    }
}

/// Number with a noun in the singular or plural.
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
        let table = TextTable::default().left("A", 6).right("B", 4).left("C", 9);
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
