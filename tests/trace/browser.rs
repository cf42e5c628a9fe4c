//! The page of `ripstop trace --html` in a browser without a screen.
//!
//! A script is appended to the page. It acts as a reader of the page does, by events of the mouse and the keyboard, and leaves
//! what it has seen in the document, which the browser prints.

use std::{env, fs, process::Command};

use serde_json::Value;

use super::{TraceFolder, place, ripstop, text_of};

/// What the script does, step by step. The page's own variables are in its scope.
const SCRIPT: &str = r#"
<script>
'use strict';
const seen = {};
const inked = () => {
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height), colors = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3]) colors.add(data.slice(at, at + 3).join());
  return [...colors];
};
const windowText = () => document.getElementById('window').textContent;
const type = (id, text) => {
  const input = document.getElementById(id);
  input.value = text;
  input.dispatchEvent(new Event('input'));
};
const clickAt = box => {
  const at = canvas.getBoundingClientRect();
  const where = { clientX: at.left + (box.left + box.right) / 2, clientY: at.top + box.y + 3 - view.scrollTop, bubbles: true };
  for (const kind of ['mousedown', 'mouseup']) canvas.dispatchEvent(new MouseEvent(kind, where));
};
const boxOf = (rank, name) =>
  shown.find(box => data.ranks[box.index].rank === rank && box.at !== undefined && data.ranks[box.index].ops[box.at][5] === name);
const strokes = [], line = pen.lineTo.bind(pen);
pen.lineTo = (x, y) => { strokes.push([x, y]); line(x, y); };
try {
  seen.colors = inked();
  seen.ranks = [...new Set(shown.map(box => data.ranks[box.index].rank))];
  seen.whole = windowText();
  view.dispatchEvent(new WheelEvent('wheel', { deltaY: -100, clientX: 400, clientY: 60, bubbles: true, cancelable: true }));
  seen.zoomed = windowText();
  document.getElementById('whole').click();
  seen.wholeAgain = windowText();
  type('ranks', '1');
  seen.filtered = [...new Set(shown.map(box => data.ranks[box.index].rank))];
  type('ranks', '');
  seen.unfiltered = [...new Set(shown.map(box => data.ranks[box.index].rank))];
  seen.before = facts.textContent;
  strokes.length = 0;
  clickAt(boxOf(0, 'recv <- 1 #7'));
  seen.fields = facts.textContent;
  seen.arrow = strokes.length;
  document.getElementById('next').click();
  seen.otherEnd = facts.textContent;
  document.getElementById('longest').click();
  seen.longest = facts.textContent;
  seen.near = windowText();
} catch (error) {
  seen.error = String(error.stack || error);
}
const report = document.createElement('script');
report.type = 'application/json';
report.id = 'report';
report.textContent = JSON.stringify(seen).replaceAll('<', '\\u003c');
document.body.append(report);
</script>
"#;

#[test]
fn the_page_draws_zooms_filters_shows_fields_and_follows_an_arrow() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = TraceFolder::new("browser");
    let trace = folder.trace(2, "late_sender");
    let page = folder.path("run.html");
    let output = ripstop(&["trace", "--html", page.to_str().unwrap()], &trace);
    assert!(output.status.success(), "{}", text_of(&output));
    let html = fs::read_to_string(&page).unwrap();
    fs::write(&page, html + SCRIPT).unwrap();
    let seen = seen_by(browser, &folder);
    let text = |name: &str| seen[name].as_str().unwrap_or_else(|| panic!("{seen:#}"));
    let ranks = |name: &str| -> Vec<u64> {
        let ranks = seen[name].as_array().unwrap().iter();
        ranks.map(|rank| rank.as_u64().unwrap()).collect()
    };
    assert!(seen.get("error").is_none(), "{seen:#}");
    // The green receive, and the red line of waits.
    for color in ["67,160,71", "198,40,40"] {
        let colors = seen["colors"].as_array().unwrap();
        assert!(colors.iter().any(|its| its == color), "{color}: {seen:#}");
    }
    assert_eq!(ranks("ranks"), [0, 1], "{seen:#}");
    assert_ne!(text("zoomed"), text("whole"), "{seen:#}");
    assert_eq!(text("wholeAgain"), text("whole"), "{seen:#}");
    assert_eq!(ranks("filtered"), [1], "{seen:#}");
    assert_eq!(ranks("unfiltered"), [0, 1], "{seen:#}");
    assert!(text("before").contains("one clock"), "{seen:#}");
    let line = place("waits for a late sender");
    let most = format!(" waited at {line} (receive), 1 operation of all ranks");
    assert!(text("before").contains(&most), "{most}: {seen:#}");
    let longest = text("longest");
    assert!(
        longest.contains("recv <- 1 #7 (receive) of rank 0"),
        "{seen:#}"
    );
    assert_ne!(text("near"), text("whole"), "{seen:#}");
    for field in [
        "recv <- 1 #7 (receive) of rank 0",
        &line,
        "32 bytes, ",
        "waited for ",
    ] {
        assert!(text("fields").contains(field), "{field}: {seen:#}");
    }
    assert!(
        text("fields").contains("\nsent by rank 1: send -> 0 #7, "),
        "{seen:#}"
    );
    assert_eq!(
        seen["arrow"], 3,
        "the line of an arrow, and its head: {seen:#}"
    );
    assert!(
        text("otherEnd").contains("send -> 0 #7 (send) of rank 1"),
        "{seen:#}"
    );
    assert!(
        text("otherEnd").contains("\nreceived by rank 0: recv <- 1 #7, "),
        "{seen:#}"
    );
}

/// Opens the page of the folder, and returns what its script has seen.
fn seen_by(browser: &str, folder: &TraceFolder) -> Value {
    // A browser that does not end is ended after this time.
    let mut command = Command::new("timeout");
    command.args(["120", browser]);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]);
    command.args([
        "--window-size=1200,800",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]);
    command.arg(format!(
        "--user-data-dir={}",
        folder.path("browser").display()
    ));
    command.arg(format!("file://{}", folder.path("run.html").display()));
    let output = command.output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let report = dom.split_once(r#"id="report">"#);
    let report = report.and_then(|(_, behind)| behind.split_once("</script>"));
    let (report, _) = report.unwrap_or_else(|| panic!("{}", text_of(&output)));
    serde_json::from_str(report).unwrap()
}

/// Returns the browser of this machine. If there is none, the test is left out, but for the gate, which installs one.
#[expect(
    clippy::print_stderr,
    reason = "the reader of the tests' output must know"
)]
fn browser() -> Option<&'static str> {
    let is_there = |name: &&str| {
        let found = Command::new("timeout")
            .args(["60", name, "--version"])
            .output();
        found.is_ok_and(|output| output.status.success())
    };
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(is_there);
    if found.is_none() {
        assert!(env::var_os("CI").is_none(), "no browser: install chromium");
        eprintln!("the page is not tested: there is no browser (Debian's package chromium)");
    }
    found
}
