//! What each rank has before a collective and after it: a row of blocks for each rank.

use super::svg::{FillShade, LineLook, OF_RANKS, SvgPicture, TextAnchor, TextLook, i32_of};

/// A collective between four ranks. A block is a text; its color is that of the rank whose letter comes first in it.
pub(super) struct CollectivePicture {
    pub(super) title: &'static str,
    pub(super) call: &'static str,
    pub(super) before: [&'static [&'static str]; 4],
    pub(super) after: [&'static [&'static str]; 4],
}

pub(super) fn draw(collective: &CollectivePicture) -> SvgPicture {
    let (before, after) = (widest(&collective.before), widest(&collective.after));
    let left = 76;
    let arrow = left + before + 20;
    let right = arrow + 76;
    let width = (right + after + 20).max(340);
    let mut picture = SvgPicture::new(collective.title, width, TOP + 4 * ROW + 12);
    picture.text((14, 26), TextAnchor::Start, TextLook::Code, collective.call);
    for (rank, y) in (0..4).map(|rank| (rank, TOP + i32_of(rank) * ROW)) {
        let at = (14, y + ROW / 2 + 4);
        picture.text(
            at,
            TextAnchor::Start,
            TextLook::Quiet,
            &format!("rank {rank}"),
        );
        draw_row(&mut picture, left, y, collective.before[rank]);
        draw_row(&mut picture, right, y, collective.after[rank]);
    }
    let y = TOP + 2 * ROW;
    picture.line(&[(arrow, y), (right - 20, y)], LineLook::Arrow);
    picture
}

fn draw_row(picture: &mut SvgPicture, left: i32, y: i32, blocks: &[&str]) {
    let mut x = left;
    for block in blocks {
        let size = (width_of(block), ROW - 6);
        picture.labeled(
            (x, y + 3),
            size,
            shade_of(block),
            (TextLook::Plain, &[block]),
        );
        x += size.0 + 4;
    }
}

fn widest(rows: &[&[&str]; 4]) -> i32 {
    let width = |row: &&[&str]| row.iter().map(|block| width_of(block) + 4).sum();
    rows.iter().map(width).max().unwrap_or(0)
}

/// Blocks of one letter and a digit are squares; a dot in a text makes its block longer and is not drawn.
fn width_of(block: &str) -> i32 {
    let letters = i32_of(block.chars().count());
    (letters * 10 + 14).max(34)
}

fn shade_of(block: &str) -> FillShade {
    if block.contains('+') {
        return FillShade::Red;
    }
    match block.chars().next() {
        Some('A') => OF_RANKS[0],
        Some('B') => OF_RANKS[1],
        Some('C') => OF_RANKS[2],
        Some('D') => OF_RANKS[3],
        Some(' ') | None => FillShade::Empty,
        Some(_) => FillShade::Gray,
    }
}

const TOP: i32 = 40;
const ROW: i32 = 36;
