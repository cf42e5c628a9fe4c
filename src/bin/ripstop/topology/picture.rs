//! The topology as a picture: boxes in boxes, with a square for each core. Readable on light and on dark backgrounds.

use std::fmt::Write;

use super::{MemoryDomain, NodeTopology, PlacedRank, ProcessorPackage, SharedCache};
use crate::picture_style::STYLE;

pub(super) fn draw(topology: &NodeTopology) -> String {
    let mut shapes = String::new();
    let mut right = MARGIN;
    let mut bottom = MARGIN;
    for package in &topology.packages {
        let size = draw_package(&mut shapes, package, right, MARGIN, &topology.ranks);
        right += size.width + GAP;
        bottom = bottom.max(MARGIN + size.height);
    }
    if !topology.adapters.is_empty() {
        let names = topology.adapters.join(", ");
        bottom += LINE;
        label(&mut shapes, MARGIN, bottom, &format!("adapters: {names}"));
        right = right.max(MARGIN + WIDTH_OF_LETTER * (names.len() + 11));
    }
    let (width, height) = (right + MARGIN, bottom + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>Topology</title>\n{STYLE}{DOMAIN_STYLE}{shapes}</svg>\n"
    )
}

/// Width and height of what was drawn.
#[derive(Clone, Copy)]
struct DrawnSize {
    width: usize,
    height: usize,
}

fn draw_package(
    out: &mut String,
    package: &ProcessorPackage,
    x: usize,
    y: usize,
    ranks: &[PlacedRank],
) -> DrawnSize {
    let title = format!("package {}", package.number);
    boxed(out, x, y, "package", &title, |out, x, y| {
        stacked(&package.domains, |domain, down| {
            draw_domain(out, domain, x, y + down, ranks)
        })
    })
}

fn draw_domain(
    out: &mut String,
    domain: &MemoryDomain,
    x: usize,
    y: usize,
    ranks: &[PlacedRank],
) -> DrawnSize {
    boxed(out, x, y, "domain", &domain.title(), |out, x, y| {
        stacked(&domain.caches, |cache, down| {
            boxed(out, x, y + down, "cache", &cache.name, |out, x, y| {
                draw_cores(out, cache, x, y, ranks)
            })
        })
    })
}

/// Draws a square for each core, with its processors, and below them its ranks.
fn draw_cores(
    out: &mut String,
    cache: &SharedCache,
    x: usize,
    y: usize,
    ranks: &[PlacedRank],
) -> DrawnSize {
    for (at, core) in cache.cores.iter().enumerate() {
        let (x, y) = (
            x + at % PER_ROW * (CORE + GAP),
            y + at / PER_ROW * (CORE + GAP),
        );
        let on_core = |placed: &&PlacedRank| placed.processors.iter().any(|cpu| core.contains(cpu));
        let names: Vec<String> = ranks
            .iter()
            .filter(on_core)
            .map(|placed| placed.rank.to_string())
            .collect();
        let class = if names.is_empty() {
            "core"
        } else {
            "core busy"
        };
        rectangle(
            out,
            x,
            y,
            DrawnSize {
                width: CORE,
                height: CORE,
            },
            class,
        );
        let cpus: Vec<String> = core.iter().map(u32::to_string).collect();
        label(out, x + 4, y + LINE, &cpus.join(","));
        match names.as_slice() {
            [] => {}
            [one] => label(out, x + 4, y + 2 * LINE, &format!("rank {one}")),
            [first, .., last] => {
                label(out, x + 4, y + 2 * LINE, &format!("{first}..{last}"));
            }
        }
    }
    let (rows, columns) = (
        cache.cores.len().div_ceil(PER_ROW),
        cache.cores.len().min(PER_ROW),
    );
    DrawnSize {
        width: columns * (CORE + GAP),
        height: rows * (CORE + GAP),
    }
}

/// Draws parts below each other, with a gap below and beside each. `draw` gets each part and how far down it is.
fn stacked<T>(parts: &[T], mut draw: impl FnMut(&T, usize) -> DrawnSize) -> DrawnSize {
    let mut all = DrawnSize {
        width: 0,
        height: 0,
    };
    for part in parts {
        let size = draw(part, all.height);
        all.width = all.width.max(size.width + GAP);
        all.height += size.height + GAP;
    }
    all
}

/// Draws a box with a title around what `draw` draws.
fn boxed(
    out: &mut String,
    x: usize,
    y: usize,
    class: &str,
    title: &str,
    draw: impl FnOnce(&mut String, usize, usize) -> DrawnSize,
) -> DrawnSize {
    let mut inner = String::new();
    let size = draw(&mut inner, x + GAP, y + LINE + GAP);
    let size = DrawnSize {
        width: (size.width + GAP).max(2 * GAP + WIDTH_OF_LETTER * title.len()),
        height: size.height + LINE + GAP,
    };
    rectangle(out, x, y, size, class);
    label(out, x + GAP, y + LINE, title);
    out.push_str(&inner);
    size
}

fn rectangle(out: &mut String, x: usize, y: usize, size: DrawnSize, class: &str) {
    let DrawnSize { width, height } = size;
    write(
        out,
        format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>\n"
        ),
    );
}

fn label(out: &mut String, x: usize, y: usize, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    write(
        out,
        format_args!("<text x=\"{x}\" y=\"{y}\">{text}</text>\n"),
    );
}

fn write(out: &mut String, shape: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = out.write_fmt(shape);
}

/// Colors for both backgrounds. Viewers without style sheets draw black outlines.
const DOMAIN_STYLE: &str = "\
<style>
  rect { fill: none; stroke: #57606a; }
  .domain { stroke: #0969da; } .cache { stroke: #8250df; } .core { stroke: #57606a; } .busy { fill: #2da44e; fill-opacity: .3; }
</style>
";

const MARGIN: usize = 12;
const GAP: usize = 8;
const LINE: usize = 16;
const CORE: usize = 52;
const PER_ROW: usize = 8;

/// About the width of a letter at this size, for boxes around titles.
const WIDTH_OF_LETTER: usize = 7;

#[cfg(test)]
mod tests {
    use super::super::tests::two_packages;

    /// Returns the greatest right edge of the boxes of a class.
    fn right_edge(svg: &str, class: &str) -> usize {
        let of_class = format!("<rect class=\"{class}\"");
        let boxes = svg.lines().filter(|line| line.starts_with(&of_class));
        let number = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
            rest.split('"').next().unwrap().parse::<usize>().unwrap()
        };
        let edges = boxes.map(|line| number(line, " x") + number(line, "width"));
        edges.max().unwrap()
    }

    #[test]
    fn a_box_is_wider_than_the_boxes_inside() {
        let svg = two_packages().svg();
        let edges = ["package", "domain", "cache", "core"].map(|class| right_edge(&svg, class));
        assert!(
            edges.is_sorted_by(|outer, inner| outer > inner),
            "{edges:?}"
        );
    }

    #[test]
    fn every_core_has_a_square_and_ranks_are_marked() {
        let svg = two_packages().svg();
        assert_eq!(svg.matches("class=\"core").count(), 8);
        assert_eq!(svg.matches("class=\"core busy\"").count(), 3);
        assert_eq!(svg.matches("class=\"cache\"").count(), 4);
        assert_eq!(svg.matches("class=\"package\"").count(), 2);
        for words in [
            ">rank 0<",
            ">rank 5<",
            ">0,8<",
            "NUMA node 1: mlx5_0",
            "adapters: eth0",
        ] {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(
            svg.matches("<rect").count(),
            svg.matches("rx=\"4\"/>").count()
        );
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}
