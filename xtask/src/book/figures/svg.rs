//! An SVG picture of boxes, lines, arrows and texts. Its colors follow the color scheme of the page's reader.

use std::fmt::Write as _;

/// A position in a picture: pixels from the left, and from the top.
pub(super) type SvgPoint = (i32, i32);

/// A picture that is being drawn. What is drawn later covers what was drawn before.
pub(super) struct SvgPicture {
    width: i32,
    height: i32,
    title: String,
    body: String,
}

/// The color of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillShade {
    /// Nothing but an outline.
    Empty,
    Gray,
    Blue,
    Orange,
    Green,
    Purple,
    Red,
}

/// The way in which a text is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextLook {
    Plain,
    Strong,
    Quiet,
    Code,
}

/// The part of a text that stands at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextAnchor {
    Start,
    Middle,
    End,
}

/// The way in which a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineLook {
    Solid,
    Dashed,
    Arrow,
    DashedArrow,
}

/// The shades of ranks 0 to 3.
pub(super) const OF_RANKS: [FillShade; 4] = [
    FillShade::Blue,
    FillShade::Orange,
    FillShade::Green,
    FillShade::Purple,
];

impl SvgPicture {
    pub(super) fn new(title: impl Into<String>, width: i32, height: i32) -> Self {
        Self {
            width,
            height,
            title: title.into(),
            body: String::new(),
        }
    }

    /// Draws a box with this upper left corner and this size.
    pub(super) fn rect(&mut self, (x, y): SvgPoint, (width, height): SvgPoint, shade: FillShade) {
        let class = shade.class();
        self.line_of_svg(&format!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>"#
        ));
    }

    /// Draws a closed polygon.
    pub(super) fn polygon(&mut self, corners: &[SvgPoint], shade: FillShade) {
        let class = shade.class();
        let corners = joined(corners);
        self.line_of_svg(&format!(r#"<polygon class="{class}" points="{corners}"/>"#));
    }

    /// Draws a line through these points. An arrow has its head at the last one.
    pub(super) fn line(&mut self, points: &[SvgPoint], look: LineLook) {
        let points = joined(points);
        let (class, head) = look.attributes();
        self.line_of_svg(&format!(
            r#"<polyline class="{class}" points="{points}"{head}/>"#
        ));
    }

    /// Draws a line in the color of the edges of boxes with this shade.
    pub(super) fn curve(&mut self, points: &[SvgPoint], shade: FillShade) {
        let (points, class) = (joined(points), shade.class());
        self.line_of_svg(&format!(
            r#"<polyline class="{class}" style="fill:none;stroke-width:2" points="{points}"/>"#
        ));
    }

    pub(super) fn text(
        &mut self,
        (x, y): SvgPoint,
        anchor: TextAnchor,
        look: TextLook,
        text: &str,
    ) {
        let (anchor, class, text) = (anchor.name(), look.class(), escaped(text));
        self.line_of_svg(&format!(
            r#"<text x="{x}" y="{y}" text-anchor="{anchor}"{class}>{text}</text>"#
        ));
    }

    /// Draws a box with lines of text in its middle.
    pub(super) fn labeled(
        &mut self,
        corner: SvgPoint,
        size: SvgPoint,
        shade: FillShade,
        (look, lines): (TextLook, &[&str]),
    ) {
        self.rect(corner, size, shade);
        let (middle, above) = (corner.0 + size.0 / 2, i32_of(lines.len()) - 1);
        let first = corner.1 + size.1 / 2 + 5 - above * LINE_HEIGHT / 2;
        for (line, row) in lines.iter().zip(0..) {
            let at = (middle, first + row * LINE_HEIGHT);
            self.text(at, TextAnchor::Middle, look, line);
        }
    }

    /// Returns the file.
    pub(super) fn finish(&self) -> String {
        let Self {
            width,
            height,
            body,
            ..
        } = self;
        let title = escaped(&self.title);
        let (right, bottom) = (width - 1, height - 1);
        let size = format!(r#"viewBox="0 0 {width} {height}" width="{width}" height="{height}""#);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{title}</title>
<style>
{STYLE}</style>
{ARROW_HEAD}
<rect class="paper" x="0.5" y="0.5" width="{right}" height="{bottom}" rx="6"/>
{body}</svg>
"#
        )
    }

    fn line_of_svg(&mut self, line: &str) {
        let _written = writeln!(self.body, "{line}");
    }
}

/// Distance of two lines of text.
pub(super) const LINE_HEIGHT: i32 = 18;

const ARROW_HEAD: &str = r#"<defs>
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9"
 markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0L10 5L0 10z"/></marker>
</defs>"#;

const STYLE: &str = "\
text { font: 14px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1c2733 }
.strong { font-weight: 600 }
.quiet { fill: #5c6975; font-size: 13px }
.code { font: 13px ui-monospace, 'DejaVu Sans Mono', monospace }
.paper { fill: #ffffff; stroke: #d5dae0 }
.line { fill: none; stroke: #4a5763; stroke-width: 1.5 }
.dash { stroke-dasharray: 5 4 }
.head { fill: #4a5763 }
.empty { fill: none; stroke: #8a96a3 }
.gray { fill: #e9ecf0; stroke: #8a96a3 }
.blue { fill: #cfe2ff; stroke: #3b6fb5 }
.orange { fill: #ffe0b8; stroke: #b87318 }
.green { fill: #cdeccf; stroke: #3d8a44 }
.purple { fill: #e6d9f7; stroke: #7c57b0 }
.red { fill: #ffd0cc; stroke: #c0392b }
@media (prefers-color-scheme: dark) {
text { fill: #e4eaf0 }
.quiet { fill: #a3b0bd }
.paper { fill: #171c22; stroke: #39434e }
.line { stroke: #b3bfcb }
.head { fill: #b3bfcb }
.empty { stroke: #7d8a97 }
.gray { fill: #2d353e; stroke: #7d8a97 }
.blue { fill: #1f3d66; stroke: #7fb0f0 }
.orange { fill: #5a3d12; stroke: #e0a95a }
.green { fill: #1f4a26; stroke: #79c482 }
.purple { fill: #43306a; stroke: #b99be6 }
.red { fill: #66231d; stroke: #f0877c }
}
";

impl FillShade {
    fn class(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Gray => "gray",
            Self::Blue => "blue",
            Self::Orange => "orange",
            Self::Green => "green",
            Self::Purple => "purple",
            Self::Red => "red",
        }
    }
}

impl TextLook {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => r#" class="strong""#,
            Self::Quiet => r#" class="quiet""#,
            Self::Code => r#" class="code""#,
        }
    }
}

impl TextAnchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

impl LineLook {
    fn attributes(self) -> (&'static str, &'static str) {
        const HEAD: &str = r#" marker-end="url(#head)""#;
        match self {
            Self::Solid => ("line", ""),
            Self::Dashed => ("line dash", ""),
            Self::Arrow => ("line", HEAD),
            Self::DashedArrow => ("line dash", HEAD),
        }
    }
}

/// Returns a count as a number of pixels or of steps.
pub(super) fn i32_of(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn joined(points: &[SvgPoint]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
    points.join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
