//! What the pictures of all commands share: colors on a light and on a dark page, and text.

/// A style sheet with which a picture is light or dark, as the reader's browser prefers. Text and `currentColor` are dark on a
/// light page and light on a dark one. Paper and rules have their light colors as attributes, too, for viewers without style
/// sheets.
pub(crate) const STYLE: &str = "\
<style>
  svg { color: #24292f; fill: currentColor; }
  .paper { fill: #ffffff; }
  .rule { stroke: #d0d7de; }
  @media (prefers-color-scheme: dark) {
    svg { color: #e6edf3; }
    .paper { fill: #171c22; }
    .rule { stroke: #39434e; }
  }
</style>
";

/// Returns text as it is written into a picture.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
