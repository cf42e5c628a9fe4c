//! A sequence diagram: a lane for each rank, time downwards, and what the ranks say to each other.

use super::svg::{FillShade, LineLook, SvgPicture, SvgPoint, TextAnchor, TextLook, i32_of};

/// A picture with lanes. Rows are counted from 0, and may be halves: all rows are given in halves of a row.
pub(super) struct SequenceDiagram {
    picture: SvgPicture,
    lanes: usize,
    margin: i32,
}

/// The rows between which something happens, in halves of a row.
pub(super) type HalfRows = (i32, i32);

impl SequenceDiagram {
    /// Begins a picture with a lane for each name, and `margin` pixels for text at both sides.
    pub(super) fn new(title: &'static str, names: &[&str], rows: i32, margin: i32) -> Self {
        let lanes = names.len();
        let width = 2 * margin + LANE * (i32_of(lanes) - 1);
        let height = TOP + rows * 2 * HALF_ROW + 16;
        let mut diagram = Self {
            picture: SvgPicture::new(title, width, height),
            lanes,
            margin,
        };
        for (name, lane) in names.iter().zip(0..) {
            let x = diagram.x(lane);
            let look = TextLook::Strong;
            diagram
                .picture
                .text((x, 26), TextAnchor::Middle, look, name);
            let ends = [(x, TOP - 14), (x, height - 10)];
            diagram.picture.line(&ends, LineLook::Dashed);
        }
        diagram
    }

    /// Writes what a rank calls beside its lane: at the left of the first lane, and at the right of the others.
    pub(super) fn call(self, half: i32, lane: usize, text: &str) -> Self {
        self.word(half, lane, TextLook::Code, text)
    }

    /// Writes a remark beside a lane.
    pub(super) fn remark(self, half: i32, lane: usize, text: &str) -> Self {
        self.word(half, lane, TextLook::Quiet, text)
    }

    /// Draws what a rank does for some time.
    pub(super) fn bar(mut self, lane: usize, (from, to): HalfRows, shade: FillShade) -> Self {
        let (top, bottom) = (y(from), y(to));
        let corner = (self.x(lane) - BAR / 2, top);
        self.picture.rect(corner, (BAR, bottom - top), shade);
        self
    }

    /// Draws a message from a lane to another, which leaves and arrives at these half rows.
    pub(super) fn message(self, from: usize, to: usize, halves: HalfRows, text: &str) -> Self {
        self.arrow([from, to], halves, text, LineLook::Arrow)
    }

    /// Draws a message that carries no data of the program.
    pub(super) fn note(self, from: usize, to: usize, halves: HalfRows, text: &str) -> Self {
        self.arrow([from, to], halves, text, LineLook::DashedArrow)
    }

    /// Draws a line across all lanes.
    pub(super) fn across(mut self, half: i32) -> Self {
        let (left, right) = (self.x(0), self.x(self.lanes - 1));
        self.picture
            .line(&[(left, y(half)), (right, y(half))], LineLook::Solid);
        self
    }

    pub(super) fn finish(self) -> SvgPicture {
        self.picture
    }

    fn word(mut self, half: i32, lane: usize, look: TextLook, text: &str) -> Self {
        let at = |distance| (self.x(lane) + distance, y(half) + 5);
        let (at, anchor) = if lane == 0 {
            (at(-BAR), TextAnchor::End)
        } else {
            (at(BAR), TextAnchor::Start)
        };
        self.picture.text(at, anchor, look, text);
        self
    }

    fn arrow(
        mut self,
        [from, to]: [usize; 2],
        (leaves, arrives): HalfRows,
        text: &str,
        look: LineLook,
    ) -> Self {
        let side = if from < to { BAR / 2 } else { -BAR / 2 };
        let start: SvgPoint = (self.x(from) + side, y(leaves));
        let end = (self.x(to) - side, y(arrives));
        self.picture.line(&[start, end], look);
        // So far above the middle of the arrow that its higher half does not cross the text.
        let rise = (start.1 - end.1).abs() * i32_of(text.chars().count()) * 4 / LANE;
        let middle = (
            i32::midpoint(start.0, end.0),
            i32::midpoint(start.1, end.1) - 6 - rise,
        );
        self.picture
            .text(middle, TextAnchor::Middle, TextLook::Plain, text);
        self
    }

    fn x(&self, lane: usize) -> i32 {
        self.margin + LANE * i32_of(lane)
    }
}

fn y(half: i32) -> i32 {
    TOP + half * HALF_ROW
}

const LANE: i32 = 260;
const TOP: i32 = 52;
const HALF_ROW: i32 = 16;
const BAR: i32 = 14;
