//! A Gantt chart: a row for each thread or adapter, time to the right, and what it does when.

use super::svg::{FillShade, LineLook, SvgPicture, TextAnchor, TextLook, i32_of};

/// A group of rows below a heading.
pub(super) struct GanttGroup {
    pub(super) heading: &'static str,
    pub(super) rows: &'static [GanttRow],
    /// Times at which a vertical line stands, and what is written beside it.
    pub(super) marks: &'static [(i32, &'static str)],
}

/// What one thread or adapter does.
pub(super) struct GanttRow {
    pub(super) name: &'static str,
    /// Begin, end, color and text of each span.
    pub(super) spans: &'static [(i32, i32, FillShade, &'static str)],
}

/// Draws groups one below the other, on the same scale of `until` units of time.
pub(super) fn draw(title: &'static str, until: i32, groups: &[GanttGroup]) -> SvgPicture {
    let height_of = |group: &GanttGroup| HEADING + i32_of(group.rows.len()) * ROW + GAP;
    let height = 12 + groups.iter().map(height_of).sum::<i32>() + 22;
    let width = LEFT + until * UNIT + 24;
    let mut picture = SvgPicture::new(title, width, height);
    let mut top = 12;
    for group in groups {
        draw_group(&mut picture, group, top);
        top += height_of(group);
    }
    picture.line(
        &[(LEFT, top + 2), (LEFT + until * UNIT, top + 2)],
        LineLook::Arrow,
    );
    let at = (LEFT - 12, top + 7);
    picture.text(at, TextAnchor::End, TextLook::Quiet, "time");
    picture
}

fn draw_group(picture: &mut SvgPicture, group: &GanttGroup, top: i32) {
    let at = (12, top + 16);
    picture.text(at, TextAnchor::Start, TextLook::Strong, group.heading);
    let first = top + HEADING;
    let bottom = first + i32_of(group.rows.len()) * ROW;
    for &(time, text) in group.marks {
        let x = LEFT + time * UNIT;
        picture.line(&[(x, first - 6), (x, bottom + 2)], LineLook::Dashed);
        let at = (x, first - 10);
        picture.text(at, TextAnchor::Middle, TextLook::Quiet, text);
    }
    for (row, index) in group.rows.iter().zip(0..) {
        let y = first + index * ROW;
        let at = (LEFT - 12, y + ROW / 2 + 4);
        picture.text(at, TextAnchor::End, TextLook::Plain, row.name);
        for &(begin, end, shade, text) in row.spans {
            let corner = (LEFT + begin * UNIT, y + 3);
            let size = ((end - begin) * UNIT, ROW - 6);
            picture.labeled(corner, size, shade, (TextLook::Plain, &[text]));
        }
    }
}

const LEFT: i32 = 150;
const UNIT: i32 = 36;
const ROW: i32 = 32;
const HEADING: i32 = 42;
const GAP: i32 = 12;
