//! What a report of a problem should have, without names of the site.

use std::collections::BTreeMap;

use ripstop::settings::Settings;

use super::{node_report::NodeReport, pseudonyms::SitePseudonyms};
use crate::{fabrics::FabricsReport, system_files::SystemFiles};

/// Returns a text in Markdown. Of the environment it has the settings only.
pub(super) fn text(
    report: &NodeReport,
    files: &dyn SystemFiles,
    variables: &BTreeMap<String, String>,
) -> String {
    let settings = Settings::from_variables(variables.clone()).unwrap_or_default();
    let unknown = || "unknown".to_owned();
    let release = files.text("/etc/os-release").unwrap_or_default();
    let system = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let plain = format!(
        "### Machine\n\n\
         - ripstop {} on {}\n\
         - {}, Linux {}\n\n\
         ### `ripstop doctor`\n\n```text\n{}```\n\n\
         ### `ripstop info --fabrics`\n\n```text\n{}```\n",
        report.version,
        std::env::consts::ARCH,
        system.map_or_else(unknown, |name| name.trim_matches('"').to_owned()),
        files
            .text("/proc/sys/kernel/osrelease")
            .unwrap_or_else(unknown),
        report.text(),
        FabricsReport::of(&settings).text(),
    );
    let mut pseudonyms = SitePseudonyms::default();
    let host = report.node.as_str();
    let short = host.split('.').next().unwrap_or(host);
    for name in [short, host] {
        pseudonyms.hide(name, "host");
    }
    for variable in ["USER", "LOGNAME"] {
        pseudonyms.hide(variables.get(variable).map_or("", String::as_str), "user");
    }
    pseudonyms.replace_in(&plain)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::text;
    use crate::{
        doctor::{finding::CheckFinding, node_report::made_up::node},
        system_files::made_up::MadeUpFiles,
    };

    #[test]
    fn a_report_has_versions_and_findings_and_no_secrets() {
        let variables = BTreeMap::from([
            ("USER".to_owned(), "lovelace".to_owned()),
            ("SECRET_TOKEN".to_owned(), "tk-123".to_owned()),
            (
                "RIPSTOP_PORTALS_LIBRARY".to_owned(),
                "/scratch/lovelace/libportals.so".to_owned(),
            ),
        ]);
        let files = MadeUpFiles::new(&[
            ("/etc/os-release", "NAME=x\nPRETTY_NAME=\"Example Linux 7\""),
            ("/proc/sys/kernel/osrelease", "6.18.0"),
        ]);
        let findings = vec![
            CheckFinding::ok("a.b", "n1.site.example has 10.0.0.7 of lovelace"),
            CheckFinding::warn("c.d", "something", "because", "mend"),
        ];
        let text = text(&node("n1.site.example", findings), &files, &variables);
        for words in [
            "ripstop 1.2.3",
            "Example Linux 7",
            "6.18.0",
            "do: mend",
            "shm",
            "host-1 has address-1 of user-1",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        for secret in ["lovelace", "tk-123", "10.0.0.7", "n1.", "scratch", "SECRET"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
