//! The figures of the book: `cargo xtask book figures` draws them, and the gate compares the files with what is drawn.

use std::{fs, path::Path};

use svg::SvgPicture;

mod blocks;
mod collectives;
mod flow;
mod gantt;
mod grids;
mod messages;
pub(crate) mod plot;
mod runtime;
mod sequence;
mod svg;
mod terminal;
mod windows;

/// A picture and the name of its file, without the ending.
struct FigureFile {
    name: &'static str,
    picture: SvgPicture,
}

/// Draws all figures, and the plots of measurements, into the book.
pub(crate) fn draw(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|why| format!("{FOLDER}: {why}"))?;
    for figure in all() {
        let file = folder.join(figure.file_name());
        let written = fs::write(&file, figure.picture.finish());
        written.map_err(|why| format!("{}: {why}", file.display()))?;
    }
    for (file, picture) in plot::of_measurements(root)? {
        let written = fs::write(root.join(&file), picture);
        written.map_err(|why| format!("{}: {why}", file.display()))?;
    }
    Ok(())
}

/// Checks that the files in the book are those that are drawn, and that there are no others.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let figures = all();
    let stale = figures.iter().filter(|figure| {
        let file = fs::read_to_string(folder.join(figure.file_name()));
        !file.is_ok_and(|text| text == figure.picture.finish())
    });
    let mut faults: Vec<String> = stale.map(FigureFile::file_name).collect();
    let entries = fs::read_dir(&folder).map_err(|why| format!("{FOLDER}: {why}"))?;
    for entry in entries {
        let name = entry.map_err(|why| format!("{FOLDER}: {why}"))?.file_name();
        let drawn = |figure: &FigureFile| name == *figure.file_name();
        if !figures.iter().any(drawn) {
            faults.push(name.display().to_string());
        }
    }
    for (file, picture) in plot::of_measurements(root)? {
        if !fs::read_to_string(root.join(&file)).is_ok_and(|text| text == picture) {
            faults.push(file.display().to_string());
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!(
        "not as drawn: {}; `cargo xtask book figures` draws them anew",
        faults.join(", ")
    ))
}

fn all() -> Vec<FigureFile> {
    let parts = [
        collectives::all(),
        grids::all(),
        messages::all(),
        runtime::all(),
        terminal::all(),
        windows::all(),
    ];
    parts.into_iter().flatten().collect()
}

impl FigureFile {
    fn file_name(&self) -> String {
        format!("{}.svg", self.name)
    }
}

const FOLDER: &str = "book/src/figures";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::all;

    #[test]
    fn figures_have_names_of_their_own_titles_and_tags_that_are_closed() {
        let figures = all();
        let names: BTreeSet<&str> = figures.iter().map(|figure| figure.name).collect();
        assert_eq!(names.len(), figures.len());
        for figure in figures {
            let text = figure.picture.finish();
            let count = |part: &str| text.matches(part).count();
            assert_eq!(count("<title></title>"), 0, "{}", figure.name);
            assert_eq!(count("<text "), count("</text>"), "{}", figure.name);
            assert_eq!(count("<svg "), count("</svg>"), "{}", figure.name);
        }
    }
}
