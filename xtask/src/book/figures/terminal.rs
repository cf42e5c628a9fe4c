//! What commands of this repository print, as pictures of a terminal. The texts stand in `terminal/` as they were printed.

use super::{
    FigureFile,
    svg::{FillShade, LINE_HEIGHT, SvgPicture, TextAnchor, TextLook, i32_of},
};

/// Commands, each behind a `$`, and what they printed. Long lines are wrapped.
struct TerminalRecord {
    name: &'static str,
    title: &'static str,
    text: &'static str,
}

pub(super) fn all() -> Vec<FigureFile> {
    let figure = |record: &TerminalRecord| FigureFile {
        name: record.name,
        picture: record.draw(),
    };
    RECORDS.iter().map(figure).collect()
}

const RECORDS: [TerminalRecord; 2] = [
    TerminalRecord {
        name: "stuck_report",
        title: "The report of ripstop stuck about a job with a rank that is stopped",
        text: include_str!("terminal/stuck.txt"),
    },
    TerminalRecord {
        name: "doctor_findings",
        title: "The findings of ripstop doctor on a virtual machine",
        text: include_str!("terminal/doctor.txt"),
    },
];

impl TerminalRecord {
    fn draw(&self) -> SvgPicture {
        let lines: Vec<String> = self.text.lines().flat_map(wrapped).collect();
        let size = (
            2 * MARGIN + CHARACTER * i32_of(COLUMNS),
            2 * MARGIN + LINE_HEIGHT * i32_of(lines.len()),
        );
        let mut picture = SvgPicture::new(self.title, size.0, size.1);
        for (line, row) in lines.iter().zip(0..) {
            let top = MARGIN + row * LINE_HEIGHT;
            if let Some((word, shade)) = mark_of(line) {
                let width = CHARACTER * i32_of(word.len()) + 6;
                picture.rect((MARGIN - 3, top + 1), (width, LINE_HEIGHT - 2), shade);
            }
            // Viewers leave out spaces at the head of a text, and draw several in a row as one.
            let indent = indent_of(line);
            let text = line[indent..].replace(' ', "\u{a0}");
            let at = (MARGIN + CHARACTER * i32_of(indent), top + BASELINE);
            picture.text(at, TextAnchor::Start, TextLook::Code, &text);
        }
        picture
    }
}

/// Cuts a line between words into pieces of at most [`COLUMNS`] characters, all with the indent of the line.
fn wrapped(line: &str) -> Vec<String> {
    let indent = &line[..indent_of(line)];
    let mut pieces = vec![String::new()];
    for word in line.split_inclusive(' ') {
        let last = pieces.last().map_or(0, |piece| piece.chars().count());
        if last + word.trim_end().chars().count() > COLUMNS {
            pieces.push(indent.to_owned());
        }
        pieces
            .last_mut()
            .expect("it begins with one")
            .push_str(word);
    }
    pieces
}

/// Returns the number of spaces at the head of a line.
fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Returns the word at the head of a line that the eye should find, and the color behind it.
fn mark_of(line: &str) -> Option<(&'static str, FillShade)> {
    MARKS.into_iter().find(|(word, _)| line.starts_with(word))
}

const MARKS: [(&str, FillShade); 6] = [
    ("$", FillShade::Gray),
    ("verdict:", FillShade::Orange),
    ("fail", FillShade::Red),
    ("warn", FillShade::Orange),
    ("note", FillShade::Blue),
    ("ok", FillShade::Green),
];

/// Characters in a line.
const COLUMNS: usize = 124;
const MARGIN: i32 = 16;
/// Width of a character in pixels, a little more than that of the widest usual fonts.
const CHARACTER: i32 = 8;
/// Distance from the top of a line to the foot of its letters.
const BASELINE: i32 = 13;
