//! The output of rank 0: a table for people, or JSON lines.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

use super::{counts::PerfCounts, samples::TimeSamples};

/// The destination of results; ranks other than 0 print nothing.
#[derive(Debug)]
pub(crate) struct ResultReport {
    speaks: bool,
    json: bool,
    /// Headings of the columns so far.
    heads: Vec<&'static str>,
    bar: ProgressBar,
}

/// One line of results.
#[derive(Debug)]
pub(crate) struct ResultRow {
    fields: Map<String, Value>,
    cells: Vec<ResultCell>,
}

#[derive(Debug)]
struct ResultCell {
    head: &'static str,
    text: String,
}

impl ResultReport {
    /// Makes a report of `lines` lines.
    pub(crate) fn new(rank: usize, json: bool, lines: usize) -> Self {
        let speaks = rank == 0;
        let watched = speaks && lines > 1 && io::stderr().is_terminal();
        let bar = if watched {
            ProgressBar::new(lines.try_into().unwrap_or(u64::MAX))
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            speaks,
            json,
            heads: Vec::new(),
            bar,
        }
    }

    /// Shows what is being measured, if the output is a terminal.
    pub(crate) fn announce(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints a line.
    ///
    /// # Errors
    /// The output is closed.
    pub(crate) fn print(&mut self, row: ResultRow) -> io::Result<()> {
        self.bar.inc(1);
        if !self.speaks {
            return Ok(());
        }
        let text = if self.json {
            Value::Object(row.fields).to_string()
        } else {
            self.lines(&row)
        };
        self.bar.suspend(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}")?;
            out.flush()
        })
    }

    /// Prints a line of the table, below a heading if its columns differ from those of the line before.
    fn lines(&mut self, row: &ResultRow) -> String {
        let heads: Vec<_> = row.cells.iter().map(|cell| cell.head).collect();
        let headed = heads != self.heads;
        self.heads = heads;
        row.table(headed)
    }
}

impl ResultRow {
    pub(crate) fn new(program: &'static str) -> Self {
        let fields = [("program".to_owned(), program.into())];
        Self {
            fields: fields.into_iter().collect(),
            cells: Vec::new(),
        }
    }

    /// Adds a message length in bytes.
    pub(super) fn size(self, size: usize) -> Self {
        self.cell("size", human(size)).field("size", size)
    }

    /// Adds a word or a count that identifies the line.
    pub(crate) fn label(
        self,
        name: &'static str,
        value: impl Into<Value> + ToString + Clone,
    ) -> Self {
        self.cell(name, value.to_string()).field(name, value)
    }

    /// Adds a figure under a heading of the table.
    pub(crate) fn figure(self, name: &'static str, head: &'static str, value: f64) -> Self {
        let text = if value.abs() < 1000.0 {
            format!("{value:.3}")
        } else {
            format!("{value:.0}")
        };
        self.cell(head, text).field(name, rounded(value))
    }

    /// Adds percentiles.
    pub(super) fn times(self, samples: &TimeSamples) -> Self {
        self.figure("median_us", "median µs", samples.micros_at(0.5))
            .figure("min_us", "min µs", samples.micros_min())
            .figure("p99_us", "p99 µs", samples.micros_at(0.99))
            .figure("p999_us", "p99.9 µs", samples.micros_at(0.999))
            .field("iters", samples.len())
    }

    /// Adds the cost of a message, on both ranks together.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a quotient, printed with six digits"
    )]
    pub(super) fn cost(self, tally: PerfCounts, messages: u64) -> Self {
        let each = |count: u64| rounded(count as f64 / messages.max(1) as f64);
        self.field("system_calls_per_message", each(tally.system_calls))
            .field("copies_per_message", each(tally.copies))
            .field("wakes_per_message", each(tally.wakes))
            .field("allocations_per_message", each(tally.allocations))
            .field("driver_messages_per_message", each(tally.messages))
            .field("entries_per_message", each(tally.entries))
            .field("placed_per_message", each(tally.placed))
            .field("events_per_message", each(tally.events))
            .field("acks_per_message", each(tally.acks))
            .field("posts_per_message", each(tally.posts))
            .field("registrations_per_message", each(tally.registrations))
            .field("interrupts_per_message", each(tally.interrupts))
    }

    /// Adds a value for the JSON line only.
    pub(crate) fn field(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    fn cell(mut self, head: &'static str, text: String) -> Self {
        self.cells.push(ResultCell { head, text });
        self
    }

    fn table(&self, headed: bool) -> String {
        let line = |text: fn(&ResultCell) -> &str| {
            let cells = self
                .cells
                .iter()
                .map(|cell| format!("{:>width$}", text(cell), width = WIDTH));
            cells.collect::<Vec<_>>().join(" ")
        };
        let values = line(|cell| &cell.text);
        if headed {
            format!("{}\n{values}", line(|cell| cell.head))
        } else {
            values
        }
    }
}

/// Formats a length: `8 B`, `4 KiB`, `1 MiB`.
pub(super) fn human(size: usize) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units
        .into_iter()
        .find(|&(_, unit)| size >= unit && size.is_multiple_of(unit));
    unit.map_or_else(
        || format!("{size} B"),
        |(name, unit)| format!("{} {name}", size / unit),
    )
}

/// Rounds to six decimals; more are noise in a file that is read and compared.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

const WIDTH: usize = 12;

#[cfg(test)]
mod tests {
    use super::{ResultReport, ResultRow, human};

    #[test]
    fn sizes_are_said_in_the_largest_unit_that_divides_them() {
        assert_eq!(
            [8, 4096, 5000, 1 << 20].map(human),
            ["8 B", "4 KiB", "5000 B", "1 MiB"]
        );
    }

    #[test]
    fn rows_of_other_columns_stand_below_a_heading_of_their_own() {
        let mut report = ResultReport::new(0, false, 4);
        let row = |head| ResultRow::new("rate").size(8).figure("figure", head, 1.0);
        let lines = ["µs", "µs", "wakes", "µs"].map(|head| report.lines(&row(head)));
        assert_eq!(
            lines.each_ref().map(|text| text.lines().count()),
            [2, 1, 2, 2]
        );
        assert!(lines[2].contains("wakes") && lines[3].contains("µs"));
    }

    #[test]
    fn a_row_has_the_same_figures_in_the_table_and_in_its_fields() {
        let row = ResultRow::new("rate")
            .size(8)
            .figure("million_per_s", "million/s", 12.5);
        assert!(row.table(true).contains("million/s") && row.table(false).contains("12.500"));
        assert_eq!(row.fields["million_per_s"], 12.5);
        assert_eq!(row.fields["size"], 8);
    }
}
