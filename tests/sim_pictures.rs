//! `ripstop sim ... --svg FILE`, as users start it: a well-formed picture, with the lines of the scenario.

use std::{env, fs, path::PathBuf, process::Command};

const RIPSTOP: &str = env!("CARGO_BIN_EXE_ripstop");

/// Returns the picture of a scenario, and the printed output.
fn picture(name: &str, words: &str) -> (String, String) {
    let file = place(name);
    let output = Command::new(RIPSTOP)
        .args(["sim", "--json"])
        .args(words.split_whitespace())
        .arg("--svg")
        .arg(&file)
        .output()
        .expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {errors}");
    let svg = fs::read_to_string(&file).expect("the picture is there");
    fs::remove_file(&file).expect("it can be removed");
    (svg, String::from_utf8_lossy(&output.stdout).into_owned())
}

fn place(name: &str) -> PathBuf {
    env::temp_dir().join(format!("ripstop-sim-{}-{name}.svg", std::process::id()))
}

/// The contents of a document: the names of its elements in order, and its texts.
#[derive(Debug, Default)]
struct Document {
    elements: Vec<String>,
    texts: Vec<String>,
}

/// Parses a document strictly: one root, nested elements, quoted attributes without duplicates, and no character that must be
/// escaped.
fn read(xml: &str) -> Result<Document, String> {
    let (mut document, mut open) = (Document::default(), Vec::<String>::new());
    let mut rest = xml.trim_end();
    while !rest.is_empty() {
        let (text, tag) = rest.split_once('<').unwrap_or((rest, ""));
        plain(text)?;
        if !text.trim().is_empty() {
            if open.is_empty() {
                return Err(format!("text outside of the root: {text:?}"));
            }
            document.texts.push(text.to_owned());
        }
        if tag.is_empty() {
            break;
        }
        let (inside, behind) = tag.split_once('>').ok_or("a tag that has no end")?;
        rest = behind;
        if let Some(name) = inside.strip_prefix('/') {
            let last = open.pop();
            if last.as_deref() != Some(name) {
                return Err(format!("</{name}> ends {last:?}"));
            }
            continue;
        }
        if open.is_empty() && !document.elements.is_empty() {
            return Err(format!("a second root: <{inside}>"));
        }
        let (inside, is_over) = inside
            .strip_suffix('/')
            .map_or((inside, false), |inside| (inside, true));
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        attributes_of(attributes).map_err(|why| format!("<{inside}>: {why}"))?;
        document.elements.push(name.to_owned());
        if !is_over {
            open.push(name.to_owned());
        }
    }
    if !open.is_empty() || document.elements.is_empty() {
        return Err(format!("still open: {open:?}"));
    }
    Ok(document)
}

fn attributes_of(text: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or("a name without a value")?;
        let (value, behind) = value.split_once('"').ok_or("a quote that has no end")?;
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-:_".contains(c));
        if name.is_empty() || !is_name || seen.contains(&name) {
            return Err(format!("the name {name:?}"));
        }
        plain(value)?;
        seen.push(name);
        rest = behind.trim_start();
    }
    Ok(())
}

/// Returns true if every `&` begins a number or one of the names that XML defines.
fn plain(text: &str) -> Result<(), String> {
    for behind in text.split('&').skip(1) {
        let name = behind.split_once(';').map_or("", |(name, _)| name);
        if !["lt", "gt", "amp", "quot", "apos"].contains(&name) && !name.starts_with('#') {
            return Err(format!("&{behind}"));
        }
    }
    Ok(())
}

#[test]
fn what_is_not_well_formed_is_told_from_what_is() {
    assert!(read("<svg a=\"1\" b=\"x &lt; y\"><g/><text>1 &amp; 2</text></svg>\n").is_ok());
    for wrong in [
        "",
        "<svg>",
        "<svg></g>",
        "<svg/><svg/>",
        "<svg/>text",
        "<svg a=1/>",
        "<svg a=\"1\" a=\"2\"/>",
        "<svg>a & b</svg>",
        "<svg a=\"&\"/>",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_scenario_draws_a_line_for_each_of_its_series_over_the_numbers_of_ranks() {
    let per_rank = ["messages per rank", "KiB of state per rank"];
    for (name, words, ranks, series) in [
        (
            "allreduce",
            "allreduce --ranks 2..16 --iters 2",
            4,
            &per_rank[..],
        ),
        (
            "barrier",
            "barrier --ranks 2..8 --iters 2 --preset bxi",
            3,
            &per_rank,
        ),
        (
            "ialltoall",
            "ialltoall --ranks 2..8 --size 4096 --way offload-32,host-1 --iters 1",
            3,
            &["offload-32 OSU %", "host-1 OSU %"],
        ),
    ] {
        let (svg, printed) = picture(name, words);
        let document = read(&svg).unwrap_or_else(|why| panic!("{words}: {why}\n{svg}"));
        assert_eq!(document.elements[0], "svg", "{words}");
        for series in series {
            let is_there = document.texts.iter().any(|text| text == series);
            assert!(is_there, "{words}: {series} in {:?}", document.texts);
        }
        let count = |element: &str| document.elements.iter().filter(|e| *e == element).count();
        let (lines, points) = (count("polyline") / 2, count("circle"));
        assert!(lines >= series.len(), "{words}: {lines} lines");
        // A point for each number of ranks, except where the value is 0, which has no logarithm.
        assert!(
            points > (lines - 1) * ranks && points <= lines * ranks,
            "{words}: {points}"
        );
        let title = words.split(' ').next().unwrap();
        assert!(document.texts.iter().any(|text| text.contains(title)));
        assert!(printed.lines().count() >= ranks, "{printed}");
    }
}

#[test]
fn a_scenario_of_several_ways_draws_a_bar_for_each_with_its_parts() {
    let words = "p3dfft --ranks 4 --per-node 2 --edge 32 --vars 2 --iters 1 --way blocking,offload";
    let (svg, printed) = picture("p3dfft", words);
    let document = read(&svg).unwrap_or_else(|why| panic!("{why}\n{svg}"));
    for bar in ["blocking 4", "offload 4"] {
        assert!(
            document.texts.iter().any(|text| text == bar),
            "{bar}: {:?}",
            document.texts
        );
    }
    let rects = document
        .elements
        .iter()
        .filter(|element| *element == "rect");
    assert!(rects.count() >= 4, "{svg}");
    assert_eq!(printed.lines().count(), 2, "{printed}");
}

#[test]
fn a_picture_that_cannot_be_written_is_an_error_that_names_the_file() {
    let file = env::temp_dir().join("ripstop-no-such-folder/picture.svg");
    let output = Command::new(RIPSTOP)
        .args(["sim", "ring", "--ranks", "2", "--iters", "1", "--svg"])
        .arg(&file)
        .output()
        .expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("--svg") && errors.contains("no-such-folder"),
        "{errors}"
    );
}
