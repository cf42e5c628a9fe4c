//! Checks that what the book and the pages beside it link to is there: files, headings and pictures.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// Checks all links of the book and of the pages in the root of the repository, and that each figure is shown.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let pages = read_pages(root).map_err(|why| format!("reading the book: {why}"))?;
    let mut faults = Vec::new();
    let mut shown = BTreeSet::new();
    for (page, text) in &pages {
        for link in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = target(page, file);
            if !root.join(&target).exists() {
                faults.push(format!("{}: no file `{file}`", page.display()));
            } else if !heading.is_empty() && !has_heading(&pages, &target, heading) {
                faults.push(format!("{}: no heading `{link}`", page.display()));
            }
            shown.insert(target);
        }
    }
    let figures = fs::read_dir(root.join(FIGURES)).map_err(|why| format!("{FIGURES}: {why}"))?;
    for figure in figures {
        let name = figure
            .map_err(|why| format!("{FIGURES}: {why}"))?
            .file_name();
        let file = Path::new(FIGURES).join(name);
        if !shown.contains(&file) {
            faults.push(format!("{}: no page shows it", file.display()));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("\n"))
    }
}

type Pages = BTreeMap<PathBuf, String>;

/// Returns the pages by their paths from the root.
fn read_pages(root: &Path) -> io::Result<Pages> {
    let mut files = files_below(root, Path::new(CHAPTERS))?;
    for entry in fs::read_dir(root)? {
        files.push(PathBuf::from(entry?.file_name()));
    }
    files.retain(|file| file.extension().is_some_and(|end| end == "md"));
    let read = |file: PathBuf| Ok((file.clone(), fs::read_to_string(root.join(file))?));
    files.into_iter().map(read).collect()
}

/// Returns all files of a folder and of those in it, by their paths from the root.
pub(super) fn files_below(root: &Path, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files.extend(files_below(root, &path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns what a page links to in this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    let ends = prose.flat_map(|part| part.split("](").skip(1));
    let links = ends.filter_map(|end| end.split(')').next());
    links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

/// Returns the path from the root of a file that a page links to.
pub(super) fn target(page: &Path, file: &str) -> PathBuf {
    if file.is_empty() {
        return page.to_owned();
    }
    let mut path = page.parent().unwrap_or_else(|| Path::new("")).to_owned();
    for part in file.split('/') {
        match part {
            "." => {}
            ".." => drop(path.pop()),
            name => path.push(name),
        }
    }
    path
}

fn has_heading(pages: &Pages, page: &Path, heading: &str) -> bool {
    let text = pages.get(page).map_or("", String::as_str);
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .any(|anchor| anchor == heading)
}

/// Returns the name that a heading has in a link.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

pub(super) const CHAPTERS: &str = "book/src";
const FIGURES: &str = "book/src/figures";

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Pages, anchor, has_heading, links, target};

    #[test]
    fn links_are_found_outside_of_code_and_resolved_beside_their_page() {
        let text = "[a](b.md#c), ![d](../e.svg)\n```\n[f](g)\n```\n[h](https://i.example)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["b.md#c", "../e.svg"]);
        let page = Path::new("book/src/parts/a.md");
        assert_eq!(target(page, "../e.svg"), Path::new("book/src/e.svg"));
        assert_eq!(target(page, ""), page);
    }

    #[test]
    fn headings_are_found_by_their_anchors() {
        assert_eq!(
            anchor("A `Vec<T>`, and what's next"),
            "a-vect-and-whats-next"
        );
        let page = PathBuf::from("a.md");
        let pages = Pages::from([(page.clone(), "# One\n\n## Two words\n".to_owned())]);
        assert!(has_heading(&pages, &page, "two-words"));
        assert!(!has_heading(&pages, &page, "three"));
    }
}
