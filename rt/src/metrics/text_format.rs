//! The metrics of a node as text: the format of Prometheus for files, version 0.0.4. Pure.

use std::{collections::BTreeMap, fmt::Write};

use super::{node_metrics::NodeMetricsReport, rank_metrics::RankMetrics};
use crate::view::report::RankState;

/// The labels that all metrics have, and whether those of ranks also have the label `rank`.
#[derive(Debug)]
pub(super) struct NodeLabels {
    pub(super) job: String,
    pub(super) node: String,
    /// The lowest rank of the node. It tells apart two nodes of a job that have the same name, such as containers of a host.
    pub(super) first: u32,
    pub(super) by_rank: bool,
}

/// Metrics of one name, which each rank has.
struct MetricFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Name of the label that tells the values of a rank apart; empty if it has one value.
    label: &'static str,
    /// The values of a rank, each with the value of the label.
    values: fn(&RankMetrics) -> Vec<(&'static str, f64)>,
    /// Makes one value of those of two ranks.
    join: fn(f64, f64) -> f64,
}

const NANOS: f64 = 1e9;

/// Helps must not change from job to job: the collector refuses two files with different ones.
const FAMILIES: [MetricFamily; 7] = [
    MetricFamily {
        name: "ripstop_operations_total",
        kind: "counter",
        help: "Messages sent and received, also as parts of collectives, and collectives begun.",
        label: "kind",
        values: |rank| {
            let [sent, received] = rank.exchanged.map(|count| count as f64);
            let collectives = rank.collectives as f64;
            vec![
                ("send", sent),
                ("recv", received),
                ("collective", collectives),
            ]
        },
        join: add,
    },
    MetricFamily {
        name: "ripstop_bytes_total",
        kind: "counter",
        help: "Bytes of messages of the application that have arrived or left, counted while a trace is recorded.",
        label: "direction",
        values: |rank| {
            let recorded = rank.recorded.iter().flat_map(|it| {
                [
                    ("sent", it.sent_bytes as f64),
                    ("received", it.received_bytes as f64),
                ]
            });
            recorded.collect()
        },
        join: add,
    },
    MetricFamily {
        name: "ripstop_wait_seconds_total",
        kind: "counter",
        help: "Time for which operations were awaited, by what they are, counted while a trace is recorded.",
        label: "state",
        values: |rank| {
            let names = ["send", "recv", "probe", "collective", "window access"];
            let recorded = rank.recorded.iter().flat_map(|it| it.waited);
            let seconds = recorded.map(|nanos| nanos as f64 / NANOS);
            names.into_iter().zip(seconds).collect()
        },
        join: add,
    },
    MetricFamily {
        name: "ripstop_operations_pending",
        kind: "gauge",
        help: "Operations in flight.",
        label: "",
        values: |rank| vec![("", rank.pending as f64)],
        join: add,
    },
    MetricFamily {
        name: "ripstop_oldest_pending_seconds",
        kind: "gauge",
        help: "Time for which the oldest operation of a rank that does not go on has been in flight.",
        label: "",
        values: |rank| vec![("", rank.oldest as f64 / NANOS)],
        join: f64::max,
    },
    MetricFamily {
        name: "ripstop_unexpected_bytes",
        kind: "gauge",
        help: "Bytes of stored messages of the application that no receive has taken.",
        label: "",
        values: |rank| vec![("", rank.unexpected_bytes as f64)],
        join: add,
    },
    MetricFamily {
        name: "ripstop_agent_cpu_seconds_total",
        kind: "counter",
        help: "Processor time of the progress agents.",
        label: "",
        values: |rank| vec![("", rank.agent as f64 / NANOS)],
        join: add,
    },
];

fn add(one: f64, other: f64) -> f64 {
    one + other
}

/// Returns the text, with a newline at the end of each line.
pub(super) fn text(report: &NodeMetricsReport<'_>, labels: &NodeLabels) -> String {
    let mut text = String::new();
    add_states(&mut text, report, labels);
    for family in &FAMILIES {
        add_family(&mut text, family, report, labels);
    }
    text
}

/// Adds how many ranks are in which state. States without a rank are there too, so that a sum over nodes has no gaps.
fn add_states(text: &mut String, report: &NodeMetricsReport<'_>, labels: &NodeLabels) {
    let name = "ripstop_ranks";
    add_head(text, name, "gauge", "Ranks of the node, by state.");
    let in_state = |state| {
        report
            .ranks
            .values()
            .filter(move |rank| rank.state == state)
    };
    let states = RankState::ALL.map(|state| (state.name(), in_state(state).count()));
    for (state, count) in states.into_iter().chain([("not found", report.missing)]) {
        add_value(text, name, labels, None, ("state", state), count as f64);
    }
}

fn add_family(
    text: &mut String,
    family: &MetricFamily,
    report: &NodeMetricsReport<'_>,
    labels: &NodeLabels,
) {
    let mut values: BTreeMap<(Option<u32>, usize), (&str, f64)> = BTreeMap::new();
    for (rank, metrics) in &report.ranks {
        for (at, (label, value)) in (family.values)(metrics).into_iter().enumerate() {
            let place = (labels.by_rank.then_some(*rank), at);
            let joined = values.get(&place);
            let joined = joined.map_or(value, |(_, other)| (family.join)(*other, value));
            values.insert(place, (label, joined));
        }
    }
    if values.is_empty() {
        return;
    }
    add_head(text, family.name, family.kind, family.help);
    for ((rank, _), (label, value)) in values {
        add_value(
            text,
            family.name,
            labels,
            rank,
            (family.label, label),
            value,
        );
    }
}

fn add_head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn add_value(
    text: &mut String,
    name: &str,
    labels: &NodeLabels,
    rank: Option<u32>,
    (label, of_label): (&str, &str),
    value: f64,
) {
    let (job, node) = (escaped(&labels.job), escaped(&labels.node));
    let first = labels.first;
    let _ = write!(
        text,
        "{name}{{job=\"{job}\",node=\"{node}\",first=\"{first}\""
    );
    if let Some(rank) = rank {
        let _ = write!(text, ",rank=\"{rank}\"");
    }
    if !label.is_empty() {
        let _ = write!(text, ",{label}=\"{of_label}\"");
    }
    let _ = writeln!(text, "}} {value}");
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::RecordedTotals;

    fn ranks() -> BTreeMap<u32, RankMetrics> {
        let rank = |sent, oldest| RankMetrics {
            state: RankState::Waiting,
            exchanged: [sent, 3],
            oldest,
            agent: 1_500_000_000,
            ..RankMetrics::default()
        };
        [(4, rank(10, 2_000_000_000)), (5, rank(20, 500_000_000))].into()
    }

    fn lines(ranks: &BTreeMap<u32, RankMetrics>, by_rank: bool) -> Vec<String> {
        let labels = NodeLabels {
            job: "a\"b\\".to_owned(),
            node: "n1".to_owned(),
            first: 4,
            by_rank,
        };
        let report = NodeMetricsReport {
            ranks: ranks.iter().map(|(rank, its)| (*rank, its)).collect(),
            missing: 1,
        };
        let text = text(&report, &labels);
        assert!(text.ends_with('\n'), "{text}");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn ranks_of_a_node_are_one_value_unless_each_is_wanted() {
        let together = lines(&ranks(), false);
        let node = r#"{job="a\"b\\",node="n1",first="4""#;
        for line in [
            format!(r#"ripstop_ranks{node},state="waiting"}} 2"#),
            format!(r#"ripstop_ranks{node},state="left"}} 0"#),
            format!(r#"ripstop_ranks{node},state="not found"}} 1"#),
            format!(r#"ripstop_operations_total{node},kind="send"}} 30"#),
            format!("ripstop_oldest_pending_seconds{node}}} 2"),
            format!("ripstop_agent_cpu_seconds_total{node}}} 3"),
        ] {
            assert!(together.contains(&line), "no {line} in {together:#?}");
        }
        let apart = lines(&ranks(), true);
        for line in [
            format!(r#"ripstop_operations_total{node},rank="4",kind="send"}} 10"#),
            format!(r#"ripstop_oldest_pending_seconds{node},rank="5"}} 0.5"#),
        ] {
            assert!(apart.contains(&line), "no {line} in {apart:#?}");
        }
    }

    #[test]
    fn bytes_and_waits_are_there_only_while_they_are_recorded() {
        let mut ranks = ranks();
        let is_recorded = |lines: &[String], name: &str| lines.iter().any(|it| it.contains(name));
        let without = lines(&ranks, false);
        assert!(!is_recorded(&without, "bytes_total") && !is_recorded(&without, "wait_seconds"));
        ranks.get_mut(&5).unwrap().recorded = Some(RecordedTotals {
            sent_bytes: 100,
            received_bytes: 7,
            waited: [0, 250_000_000, 0, 0, 0],
        });
        let with = lines(&ranks, false);
        assert!(is_recorded(&with, "direction=\"received\"} 7"), "{with:#?}");
        assert!(is_recorded(&with, "state=\"recv\"} 0.25"), "{with:#?}");
    }
}
