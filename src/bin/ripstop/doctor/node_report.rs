//! The findings of one node, as text and as JSON.

use std::io::Read;

use serde_json::{Deserializer, Value, json};

use super::finding::{CheckFinding, CheckState};

/// All findings about one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeReport {
    /// Name of the host.
    pub(super) node: String,
    /// Version of the command.
    pub(super) version: String,
    pub(super) findings: Vec<CheckFinding>,
}

impl NodeReport {
    /// Returns the findings with the worst first, and otherwise in the order of the checks. Rows that need no attention take one
    /// line each.
    pub(super) fn text(&self) -> String {
        let mut sorted: Vec<&CheckFinding> = self.findings.iter().collect();
        sorted.sort_by_key(|finding| {
            // Checks that were skipped are listed with those that found no fault.
            std::cmp::Reverse(finding.state.max(CheckState::Skip))
        });
        let rows: String = sorted.into_iter().map(row).collect();
        format!("{rows}\n{}\n", self.summary())
    }

    fn summary(&self) -> String {
        let count = |state: CheckState| {
            self.findings
                .iter()
                .filter(|finding| finding.state == state)
                .count()
        };
        let (failures, warnings) = (count(CheckState::Fail), count(CheckState::Warn));
        let all = match self.findings.len() {
            1 => "1 check".to_owned(),
            some => format!("{some} checks"),
        };
        let host = &self.node;
        match (failures, warnings) {
            (0, 0) => format!("{host}: {all}, and nothing is wrong"),
            (0, warnings) => format!(
                "{host}: {all}, {warnings} with a warning: programs run, and lose what the warnings say"
            ),
            (failures, warnings) => {
                format!("{host}: {all}, {failures} failed, {warnings} with a warning")
            }
        }
    }

    pub(super) fn worst(&self) -> CheckState {
        let states = self.findings.iter().map(|finding| finding.state);
        states.max().unwrap_or(CheckState::Ok)
    }

    pub(super) fn json(&self) -> Value {
        let findings: Vec<Value> = self.findings.iter().map(CheckFinding::json).collect();
        json!({
            "format": FORMAT,
            "node": self.node,
            "ripstop": self.version,
            "worst": self.worst().name(),
            "checks": findings,
        })
    }

    /// Reads reports that follow each other, as several nodes print them.
    ///
    /// # Errors
    /// The input is not such a sequence. The text says at which value.
    pub(super) fn read_all(input: impl Read) -> Result<Vec<Self>, String> {
        let values = Deserializer::from_reader(input).into_iter::<Value>();
        let reports = (1..).zip(values).map(|(number, value)| {
            let value = value.map_err(|why| format!("value {number} is no JSON ({why})"))?;
            let other = || {
                format!("value {number} is no report of `ripstop doctor --json` in format {FORMAT}")
            };
            Self::of_json(&value).ok_or_else(other)
        });
        reports.collect()
    }

    fn of_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        if value.get("format")?.as_u64()? != FORMAT {
            return None;
        }
        let findings = value.get("checks")?.as_array()?.iter();
        Some(Self {
            node: text("node")?,
            version: text("ripstop")?,
            findings: findings.map(CheckFinding::of_json).collect::<Option<_>>()?,
        })
    }
}

fn row(finding: &CheckFinding) -> String {
    let (state, name) = (finding.state.name(), &finding.check);
    // A long reason for leaving a check out is in the JSON.
    let seen = match finding.state {
        CheckState::Skip => shortened(&finding.seen),
        _ => finding.seen.clone(),
    };
    let mut text = format!("{state:<5} {name:<22} {seen}\n");
    for (word, sentence) in [("why", &finding.why), ("do", &finding.advice)] {
        if !sentence.is_empty() {
            text += &format!("{:<5} {:<22} {word}: {sentence}\n", "", "");
        }
    }
    text
}

/// Returns at most one line of text.
fn shortened(text: &str) -> String {
    let end = text.char_indices().nth(SEEN_MAX).map(|(at, _)| at);
    end.map_or_else(|| text.to_owned(), |end| format!("{}...", &text[..end]))
}

/// With the columns before it, a line of 120.
const SEEN_MAX: usize = 88;

/// Version of the form of reports.
const FORMAT: u64 = 1;

/// Reports of made-up nodes.
#[cfg(test)]
pub(super) mod made_up {
    use super::{CheckFinding, NodeReport};

    pub(crate) fn node(name: &str, findings: Vec<CheckFinding>) -> NodeReport {
        NodeReport {
            node: name.to_owned(),
            version: "1.2.3".to_owned(),
            findings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CheckFinding, NodeReport, made_up::node};

    #[test]
    fn the_worst_findings_come_first_with_what_to_do() {
        let report = node(
            "n1",
            vec![
                CheckFinding::ok("a.fine", "seen"),
                CheckFinding::note("b.noted", "seen", "because", "look"),
                CheckFinding::skip("c.skipped", "seen"),
                CheckFinding::fail("d.failed", "seen", "because", "mend"),
                CheckFinding::ok("e.fine", "seen"),
                CheckFinding::warn("f.warned", "seen", "because", "change"),
            ],
        );
        let text = report.text();
        let names: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        let expected = [
            "d.failed",
            "f.warned",
            "b.noted",
            "a.fine",
            "c.skipped",
            "e.fine",
            "6",
        ];
        assert_eq!(names, expected, "{text}");
        assert!(
            text.contains("why: because") && text.contains("do: mend"),
            "{text}"
        );
        assert!(
            text.ends_with("6 checks, 1 failed, 1 with a warning\n"),
            "{text}"
        );
    }

    #[test]
    fn reports_of_several_nodes_are_read_one_after_the_other() {
        let one = node("n1", vec![CheckFinding::ok("a.b", "c")]);
        let two = node("n2", vec![]);
        let text = format!("{}\n{:#}", one.json(), two.json());
        assert_eq!(NodeReport::read_all(text.as_bytes()), Ok(vec![one, two]));
        assert_eq!(NodeReport::read_all(&b""[..]), Ok(vec![]));
        for (bad, words) in [("{", "value 1 is no JSON"), ("{}", "value 1 is no report")] {
            let why = NodeReport::read_all(bad.as_bytes()).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let newer = text.replace("\"format\":1", "\"format\":2");
        assert!(NodeReport::read_all(newer.as_bytes()).is_err());
    }
}
