//! Boxes with texts, and arrows between them: states, decisions and layers.

use super::svg::{FillShade, LineLook, SvgPicture, SvgPoint, TextAnchor, TextLook};

/// A picture of boxes.
pub(super) struct FlowChart {
    picture: SvgPicture,
}

impl FlowChart {
    pub(super) fn new(title: &'static str, width: i32, height: i32) -> Self {
        Self {
            picture: SvgPicture::new(title, width, height),
        }
    }

    /// Draws a box with lines of text in its middle.
    pub(super) fn node(
        self,
        corner: SvgPoint,
        size: SvgPoint,
        shade: FillShade,
        lines: &[&str],
    ) -> Self {
        self.node_with(corner, size, shade, (TextLook::Plain, lines))
    }

    /// Draws a box with lines of code in its middle.
    pub(super) fn code_node(
        self,
        corner: SvgPoint,
        size: SvgPoint,
        shade: FillShade,
        lines: &[&str],
    ) -> Self {
        self.node_with(corner, size, shade, (TextLook::Code, lines))
    }

    /// Draws a box with its name above its contents.
    pub(super) fn area(mut self, corner: SvgPoint, size: SvgPoint, name: &str) -> Self {
        self.picture.rect(corner, size, FillShade::Empty);
        let at = (corner.0 + 12, corner.1 + 20);
        self.picture
            .text(at, TextAnchor::Start, TextLook::Strong, name);
        self
    }

    /// Draws an arrow through these points.
    pub(super) fn arrow(mut self, points: &[SvgPoint]) -> Self {
        self.picture.line(points, LineLook::Arrow);
        self
    }

    /// Draws a dashed arrow through these points.
    pub(super) fn dashed(mut self, points: &[SvgPoint]) -> Self {
        self.picture.line(points, LineLook::DashedArrow);
        self
    }

    /// Writes a text that begins here.
    pub(super) fn text(mut self, at: SvgPoint, text: &str) -> Self {
        self.picture
            .text(at, TextAnchor::Start, TextLook::Quiet, text);
        self
    }

    /// Writes a text with its middle here.
    pub(super) fn centered(mut self, at: SvgPoint, text: &str) -> Self {
        self.picture
            .text(at, TextAnchor::Middle, TextLook::Quiet, text);
        self
    }

    /// Writes a heading that begins here.
    pub(super) fn heading(mut self, at: SvgPoint, text: &str) -> Self {
        self.picture
            .text(at, TextAnchor::Start, TextLook::Strong, text);
        self
    }

    pub(super) fn finish(self) -> SvgPicture {
        self.picture
    }

    fn node_with(
        mut self,
        corner: SvgPoint,
        size: SvgPoint,
        shade: FillShade,
        text: (TextLook, &[&str]),
    ) -> Self {
        self.picture.labeled(corner, size, shade, text);
        self
    }
}
