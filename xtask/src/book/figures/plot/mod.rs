//! `cargo xtask bench plot`: pictures of measurements, from their JSON lines.
//!
//! The book's own are drawn with its figures: each file of JSON lines in the folder of measurements has its picture beside it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::svg::SvgPicture;
use crate::book::links;

mod axis;
mod curves;
mod ratios;

pub(crate) const HELP: &str = "\
cargo xtask bench plot FILE [--svg FILE]

Draws what `cargo xtask bench compare --json FILE` has written: a bar for the median ratio of each row, a line from its
lowest to its highest value, and its target as a mark. A file may have a first line with `title`, `machine`, `date`,
`commit` and `command`, which stand below the picture. Lines with `series`, `x` and `y` are drawn as curves instead; the
first line names the axes `x` and `y`.

  --svg  the picture's file (default: FILE with the ending svg)

  cargo xtask bench compare --only collectives --json collectives.jsonl && cargo xtask bench plot collectives.jsonl
";

/// Draws the file that the arguments behind `bench plot` name.
///
/// # Errors
/// A sentence that says what to do: an unknown argument, or a file that cannot be read, drawn or written.
pub(crate) fn run(args: &[&str]) -> Result<String, String> {
    let (from, to) = match *args {
        ["--help" | "-h"] => return Ok(HELP.to_owned()),
        [from] if !from.starts_with('-') => (from, Path::new(from).with_extension("svg")),
        [from, "--svg", to] | ["--svg", to, from] => (from, PathBuf::from(to)),
        _ => return Err(format!("give one file of JSON lines\n\n{HELP}")),
    };
    let picture = picture_of(Path::new(from))?;
    fs::write(&to, picture).map_err(|why| format!("{}: {why}", to.display()))?;
    Ok(format!("wrote {}\n", to.display()))
}

/// Returns the pictures of the book's measurements, and the paths of their files from the root.
pub(super) fn of_measurements(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let files = links::files_below(root, Path::new(MEASUREMENTS));
    let mut files = files.map_err(|why| format!("{MEASUREMENTS}: {why}"))?;
    files.retain(|file| file.extension().is_some_and(|end| end == "jsonl"));
    files.sort();
    let drawn = files.into_iter().map(|file| {
        let picture = picture_of(&root.join(&file))?;
        Ok((file.with_extension("svg"), picture))
    });
    drawn.collect()
}

const MEASUREMENTS: &str = "book/src/measurements";

fn picture_of(file: &Path) -> Result<String, String> {
    let named = |why: String| format!("{}: {why}", file.display());
    let text = fs::read_to_string(file).map_err(|why| named(why.to_string()))?;
    let picture = draw(&text).map_err(named)?;
    Ok(picture.finish())
}

fn draw(text: &str) -> Result<SvgPicture, String> {
    let mut records = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let record: Value =
            serde_json::from_str(line).map_err(|why| format!("line {number}: {why}"))?;
        records.push(record);
    }
    let head = PlotHead::of(&records);
    let ratios = ratios::rows_of(&records);
    if !ratios.is_empty() {
        return Ok(ratios::draw(&head, &ratios));
    }
    let curves = curves::curves_of(&records);
    if !curves.is_empty() {
        return Ok(curves::draw(&head, &curves));
    }
    Err("no line has a `row` with its `ratio`, and none a `series` with `x` and `y`".to_owned())
}

/// What stands around the figures of a plot.
struct PlotHead {
    title: String,
    /// Names of the axes of curves.
    axes: [String; 2],
    /// Lines below the picture: where and when it was measured, and the command.
    source: Vec<String>,
}

impl PlotHead {
    fn of(records: &[Value]) -> Self {
        let head = records.iter().find(|record| record["title"].is_string());
        let text = |name: &str| head.and_then(|head| head[name].as_str()).map(str::to_owned);
        let place = [text("date"), text("commit"), text("machine")];
        let place: Vec<String> = place.into_iter().flatten().collect();
        let source = [Some(place.join(", ")), text("command")];
        Self {
            title: text("title").unwrap_or_else(|| "Ratios of a comparison".to_owned()),
            axes: ["x", "y"].map(|name| text(name).unwrap_or_default()),
            source: source
                .into_iter()
                .flatten()
                .filter(|line| !line.is_empty())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn rows_become_bars_whose_color_says_whether_the_target_is_met() {
        let text = r#"{"title":"T","date":"2026-01-02","machine":"M","command":"c"}
{"row":"good","ratio":0.5,"ratio_min":0.4,"ratio_max":0.6,"target":"≤ 1 ×"}
{"row":"bad","ratio":0.9,"ratio_min":0.8,"ratio_max":1.1,"target":"≥ 1.2 ×"}
{"row":"of no other","ratio":3.0,"ratio_min":3.0,"ratio_max":3.0,"target":"≥ 1"}"#;
        let svg = draw(text).unwrap().finish();
        let count = |part: &str| svg.matches(part).count();
        assert_eq!(
            (count(">good<"), count(">bad<"), count(">of no other<")),
            (1, 1, 0)
        );
        assert_eq!(
            (count(r#"rect class="green""#), count(r#"rect class="red""#)),
            (1, 1)
        );
        assert!(svg.contains("2026-01-02, M"), "{svg}");
    }

    #[test]
    fn points_become_a_curve_for_each_series() {
        let text = r#"{"title":"T","x":"bytes","y":"µs"}
{"series":"a","x":8,"y":0.5}
{"series":"a","x":1048576,"y":50}
{"series":"b","x":8,"y":5}"#;
        let svg = draw(text).unwrap().finish();
        assert_eq!(svg.matches("stroke-width:2").count(), 2);
        assert!(svg.contains(">1 MiB<"), "{svg}");
    }

    #[test]
    fn a_file_without_figures_is_an_error_that_names_the_line_or_what_is_missing() {
        assert!(draw("{}\nnonsense").err().unwrap().starts_with("line 2: "));
        assert!(draw("{}").err().unwrap().contains("`ratio`"));
    }
}
