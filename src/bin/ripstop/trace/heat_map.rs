//! Draws how many bytes each rank sent to each other one, as a picture that is readable on light and on dark backgrounds.

use std::fmt::Write;

use super::profile::PairTraffic;
use crate::{picture_style::STYLE, units::binary_size};

/// Most rows and columns. Of more ranks, several share one.
const CELLS_MAX: u32 = 64;

/// Least and greatest side of a square, and the width that all of them fill between these.
const SIDE: u32 = 9;
const SIDE_MAX: u32 = 24;
const FILLED: u32 = CELLS_MAX * SIDE;

const LEFT: u32 = 64;
const TOP: u32 = 56;
const MARGIN: u32 = 16;

/// Squares of the legend, and the space for each.
const SHADES: u32 = 5;
const SHADE_WIDTH: u32 = 92;

/// Least width of the picture: that of its legend.
const WIDTH_MIN: u32 = LEFT + SHADES * SHADE_WIDTH + MARGIN;

/// Traffic of a job between groups of ranks with consecutive numbers.
struct FoldedTraffic {
    size: u32,
    /// Ranks of each group; the last one may have fewer.
    each: u32,
    /// Rows and columns.
    cells: u32,
    /// Messages and bytes, row by row: a row for each group of senders.
    traffic: Vec<PairTraffic>,
}

/// Draws the traffic of a job of `size` ranks, given by sender and receiver.
pub(super) fn svg<'a>(
    size: u32,
    pairs: impl Iterator<Item = (&'a (u32, u32), &'a PairTraffic)>,
) -> String {
    FoldedTraffic::of(size, pairs).draw()
}

impl FoldedTraffic {
    fn of<'a>(size: u32, pairs: impl Iterator<Item = (&'a (u32, u32), &'a PairTraffic)>) -> Self {
        let size = size.max(1);
        let each = size.div_ceil(CELLS_MAX);
        let cells = size.div_ceil(each);
        let mut traffic = vec![PairTraffic::default(); (cells * cells) as usize];
        for ((from, to), pair) in pairs.filter(|((from, to), _)| *from.max(to) < size) {
            let sum = &mut traffic[(from / each * cells + to / each) as usize];
            sum.messages += pair.messages;
            sum.bytes = sum.bytes.saturating_add(pair.bytes);
        }
        Self {
            size,
            each,
            cells,
            traffic,
        }
    }

    fn draw(&self) -> String {
        let side = self.cells * self.side();
        let width = (LEFT + side + MARGIN).max(WIDTH_MIN);
        let height = TOP + side + 3 * MARGIN + SIDE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<title>Bytes from rank to rank</title>\n{STYLE}{CELL_STYLE}\
             <rect class=\"frame\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{side}\" height=\"{side}\"/>\n"
        );
        let most = self.traffic.iter().map(|pair| pair.bytes).max();
        let most = most.unwrap_or(0);
        self.draw_cells(&mut svg, most);
        self.draw_axes(&mut svg);
        draw_legend(&mut svg, TOP + side + MARGIN, most);
        svg.push_str("</svg>\n");
        svg
    }

    fn side(&self) -> u32 {
        (FILLED / self.cells).clamp(SIDE, SIDE_MAX)
    }

    fn draw_cells(&self, svg: &mut String, most: u64) {
        let side = self.side();
        for (pair, number) in self.traffic.iter().zip(0..) {
            if pair.messages == 0 {
                continue;
            }
            let (row, column) = (number / self.cells, number % self.cells);
            let _ = writeln!(
                svg,
                "<rect class=\"c\" x=\"{}\" y=\"{}\" width=\"{side}\" height=\"{side}\" fill-opacity=\"{:.2}\"><title>{} to {}: \
                 {} messages, {} bytes</title></rect>",
                LEFT + column * side,
                TOP + row * side,
                shade(pair.bytes, most),
                self.name(row),
                self.name(column),
                pair.messages,
                pair.bytes
            );
        }
    }

    /// Names the ranks of a row or column.
    fn name(&self, cell: u32) -> String {
        let first = cell * self.each;
        let last = (first + self.each - 1).min(self.size - 1);
        if first == last {
            format!("rank {first}")
        } else {
            format!("ranks {first}-{last}")
        }
    }

    /// Writes the first rank of some rows and columns.
    fn draw_axes(&self, svg: &mut String) {
        let step = self.cells.div_ceil(16);
        for cell in (0..self.cells).step_by(step as usize) {
            let rank = cell * self.each;
            let along = cell * self.side() + self.side() / 2;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{rank}</text>",
                LEFT - 5,
                TOP + along + 4
            );
            let (x, y) = (LEFT + along + 4, TOP - 5);
            let _ = writeln!(
                svg,
                "<text transform=\"translate({x} {y}) rotate(-90)\">{rank}</text>"
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"14\">rows: senders; columns: receivers; {} ranks, {} in a row</text>",
            self.size, self.each
        );
    }
}

/// Draws what the shades mean: equal steps of a power of the number of bytes.
fn draw_legend(svg: &mut String, y: u32, most: u64) {
    for step in 0..SHADES {
        let bytes = bytes_at(step, most);
        let x = LEFT + step * SHADE_WIDTH;
        let _ = writeln!(
            svg,
            "<rect class=\"c\" x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" fill-opacity=\"{:.2}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            shade(bytes, most),
            x + SIDE + 4,
            y + SIDE,
            binary_size(bytes)
        );
    }
}

/// Returns the opacity of a cell. It grows with the logarithm, because few pairs exchange most of the bytes.
fn shade(bytes: u64, most: u64) -> f64 {
    const LEAST: f64 = 0.15;
    let power = |bytes: u64| f64::from(bytes.max(1).ilog2());
    LEAST + (1.0 - LEAST) * power(bytes) / power(most).max(1.0)
}

/// Returns the bytes of a square of the legend: from 1 to the most that there is.
fn bytes_at(step: u32, most: u64) -> u64 {
    if step + 1 == SHADES {
        return most;
    }
    1 << (most.max(1).ilog2() * step / (SHADES - 1))
}

const CELL_STYLE: &str = "\
<style>
  .c { fill: #1e88e5; }
  .frame { fill: none; stroke: #8b949e; }
  @media (prefers-color-scheme: dark) { .c { fill: #64b5f6; } }
</style>
";

#[cfg(test)]
mod tests {
    use super::{FoldedTraffic, PairTraffic, svg};

    const fn pair(messages: u64, bytes: u64) -> PairTraffic {
        PairTraffic {
            messages,
            bytes,
            late_sender: 0,
        }
    }

    #[test]
    fn many_ranks_share_rows_and_columns_and_no_byte_is_lost() {
        for size in [1, 2, 63, 64, 65, 128, 1000, 16384] {
            let pairs = [0, size / 2, size - 1].map(|rank| ((rank, size - 1 - rank), pair(2, 10)));
            let folded = FoldedTraffic::of(size, pairs.iter().map(|(key, pair)| (key, pair)));
            assert!(folded.cells <= 64 && folded.cells * folded.each >= size);
            let sum = folded.traffic.iter().map(|pair| pair.bytes).sum::<u64>();
            assert_eq!(sum, 30, "{size} ranks");
        }
    }

    #[test]
    fn the_picture_names_each_pair_and_shades_by_bytes() {
        let pairs = [((0, 1), pair(3, 4096)), ((1, 0), pair(1, 1))];
        let picture = svg(2, pairs.iter().map(|(key, pair)| (key, pair)));
        let much = "fill-opacity=\"1.00\"><title>rank 0 to rank 1: 3 messages, 4096 bytes<";
        let little = "fill-opacity=\"0.15\"><title>rank 1 to rank 0: 1 messages, 1 bytes<";
        assert!(
            picture.contains(much) && picture.contains(little),
            "{picture}"
        );
        let folded = [((0, 130), pair(1, 8))];
        let picture = svg(131, folded.iter().map(|(key, pair)| (key, pair)));
        assert!(
            picture.contains("<title>ranks 0-2 to ranks 129-130: 1 messages"),
            "{picture}"
        );
        assert_eq!(svg(4, [].into_iter()).matches("<title>").count(), 1);
    }
}
