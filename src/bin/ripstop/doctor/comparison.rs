//! Several nodes beside each other: in which checks do some differ from most, and which nodes are these?

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    finding::{CheckFinding, CheckState},
    node_report::NodeReport,
};

/// The checks in which nodes differ.
#[derive(Debug)]
pub(super) struct NodeComparison {
    nodes: usize,
    checks: usize,
    differing: Vec<DifferingCheck>,
}

/// A check, and the nodes by what they have seen, the most frequent first.
#[derive(Debug)]
struct DifferingCheck {
    name: String,
    groups: Vec<AlikeNodes>,
}

/// Nodes on which a check has seen the same.
#[derive(Debug)]
struct AlikeNodes {
    seen: String,
    nodes: Vec<String>,
}

impl NodeComparison {
    pub(super) fn of(reports: &[NodeReport]) -> Self {
        let all = reports.iter().flat_map(|report| &report.findings);
        let names: BTreeSet<&str> = all.map(|finding| finding.check.as_str()).collect();
        let mut checks: Vec<_> = names.iter().map(|name| groups(name, reports)).collect();
        checks.push(versions(reports));
        let checks_of_all = checks.len();
        checks.retain(|check| check.groups.len() > 1);
        Self {
            nodes: reports.len(),
            checks: checks_of_all,
            differing: checks,
        }
    }

    pub(super) const fn is_uniform(&self) -> bool {
        self.differing.is_empty()
    }

    pub(super) fn text(&self) -> String {
        let (nodes, checks) = (self.nodes, self.checks);
        if nodes == 1 {
            return "1 node, and none to compare it with\n".to_owned();
        }
        if self.is_uniform() {
            return format!("{nodes} nodes are alike in all {checks} checks\n");
        }
        let mut text = String::new();
        for check in &self.differing {
            let mut name = check.name.as_str();
            for group in &check.groups {
                text += &format!("{name:<22} {}: {}\n", shown(&group.nodes), group.seen);
                name = "";
            }
        }
        let alike = checks - self.differing.len();
        format!(
            "{text}\n{nodes} nodes are alike in {alike} of {checks} checks; the odd ones out are {}\n",
            self.odd_ones().join(", ")
        )
    }

    /// Returns the nodes that differ from most in some check, in the order of their names. If no value has a majority, all but
    /// the nodes with the first value count.
    fn odd_ones(&self) -> Vec<String> {
        let few = self.differing.iter().flat_map(|check| &check.groups[1..]);
        let names: BTreeSet<&String> = few.flat_map(|group| &group.nodes).collect();
        names.into_iter().cloned().collect()
    }

    pub(super) fn json(&self) -> Value {
        let group = |group: &AlikeNodes| json!({ "seen": group.seen, "nodes": group.nodes });
        let check = |check: &DifferingCheck| {
            let groups: Vec<Value> = check.groups.iter().map(group).collect();
            json!({ "check": check.name, "groups": groups })
        };
        let differing: Vec<Value> = self.differing.iter().map(check).collect();
        json!({
            "nodes": self.nodes,
            "checks": self.checks,
            "odd_ones": self.odd_ones(),
            "differing": differing,
        })
    }
}

fn groups(name: &str, reports: &[NodeReport]) -> DifferingCheck {
    let seen = reports.iter().map(|report| {
        let finding = report.findings.iter().find(|finding| finding.check == name);
        (
            report,
            finding.map_or_else(|| "not checked".to_owned(), compared),
        )
    });
    grouped(name, seen)
}

fn versions(reports: &[NodeReport]) -> DifferingCheck {
    let seen = reports
        .iter()
        .map(|report| (report, format!("ripstop {}", report.version)));
    grouped("versions.doctor", seen)
}

fn grouped<'a>(name: &str, seen: impl Iterator<Item = (&'a NodeReport, String)>) -> DifferingCheck {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (report, seen) in seen {
        by_text.entry(seen).or_default().push(report.node.clone());
    }
    let alike = by_text
        .into_iter()
        .map(|(seen, nodes)| AlikeNodes { seen, nodes });
    let mut groups: Vec<AlikeNodes> = alike.collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.nodes.len()));
    DifferingCheck {
        name: name.to_owned(),
        groups,
    }
}

/// Returns what has to be equal on equal nodes.
fn compared(finding: &CheckFinding) -> String {
    match (finding.state, finding.varies) {
        (state, true) => state.name().to_owned(),
        (CheckState::Ok, false) => finding.seen.clone(),
        (state, false) => format!("{}, {}", state.name(), finding.seen),
    }
}

/// Returns the names of a few nodes, or the number of many.
fn shown(nodes: &[String]) -> String {
    match nodes {
        few if few.len() <= NODES_SHOWN => few.join(", "),
        many => format!("{} nodes", many.len()),
    }
}

const NODES_SHOWN: usize = 4;

#[cfg(test)]
mod tests {
    use super::{CheckFinding, NodeComparison, NodeReport};
    use crate::doctor::node_report::made_up::node;

    fn healthy(name: &str, load: &str) -> NodeReport {
        let memlock = CheckFinding::ok("memory.locked", "unlimited");
        let load = CheckFinding::ok("processors.load", load).varying();
        node(name, vec![memlock, load])
    }

    #[test]
    fn nodes_that_differ_only_in_what_varies_are_alike() {
        let comparison = NodeComparison::of(&[healthy("n1", "0"), healthy("n2", "7")]);
        assert!(comparison.is_uniform());
        assert_eq!(comparison.text(), "2 nodes are alike in all 3 checks\n");
    }

    #[test]
    fn the_odd_ones_out_are_named() {
        let mut nodes: Vec<NodeReport> = (1..=16)
            .map(|n| healthy(&format!("n{n:02}"), "0"))
            .collect();
        nodes[6].findings[0] = CheckFinding::warn("memory.locked", "8 MiB", "", "");
        nodes[9].findings.pop();
        nodes[11].version = "1.2.2".to_owned();
        let comparison = NodeComparison::of(&nodes);
        let text = comparison.text();
        for line in [
            "memory.locked          15 nodes: unlimited\n",
            "                       n07: warn, 8 MiB\n",
            "processors.load        15 nodes: ok\n",
            "                       n10: not checked\n",
            "                       n12: ripstop 1.2.2\n",
            "alike in 0 of 3 checks; the odd ones out are n07, n10, n12\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let json = comparison.json();
        assert_eq!(json["odd_ones"][0], "n07");
        assert_eq!(json["differing"].as_array().unwrap().len(), 3);
    }
}
