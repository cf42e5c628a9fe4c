//! This command, and the settings in its environment.

use ripstop::settings::Settings;

use crate::doctor::finding::CheckFinding;

/// What is known about this command and its settings.
#[derive(Debug)]
pub(in crate::doctor) struct VersionFacts {
    /// True if the command was built without optimization.
    is_debug: bool,
    /// Settings in the environment as `NAME=value`, or the error of a bad one.
    settings: Result<Vec<String>, String>,
}

impl VersionFacts {
    pub(in crate::doctor) fn observe(settings: Result<&Settings, String>) -> Self {
        let set = |settings: &Settings| {
            let rows = settings.rows().into_iter();
            let set = rows.filter(|row| row.source != ripstop::settings::SettingSource::Default);
            set.map(|row| format!("{}={}", row.name, row.value))
                .collect()
        };
        Self {
            is_debug: cfg!(debug_assertions),
            settings: settings.map(set),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![self.build(), self.settings_finding()]
    }

    fn build(&self) -> CheckFinding {
        const CHECK: &str = "versions.command";
        let version = env!("CARGO_PKG_VERSION");
        if self.is_debug {
            return CheckFinding::note(
                CHECK,
                format!("ripstop {version}, built without optimization"),
                "what such a command or program measures says nothing: messages take several times as long",
                "cargo build --release, and cargo install for the command",
            );
        }
        CheckFinding::ok(CHECK, format!("ripstop {version}, optimized"))
    }

    fn settings_finding(&self) -> CheckFinding {
        const CHECK: &str = "versions.settings";
        match &self.settings {
            Ok(set) if set.is_empty() => {
                CheckFinding::ok(CHECK, "all settings have their defaults")
            }
            Ok(set) => CheckFinding::ok(CHECK, set.join(" ")),
            Err(why) => CheckFinding::fail(
                CHECK,
                why,
                "a program of Ripstop ends with this error when it starts",
                "correct or unset the variable; `ripstop info --settings` lists all of them",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use ripstop::settings::Settings;

    use super::VersionFacts;
    use crate::doctor::finding::CheckState::{Fail, Note, Ok as Fine};

    #[test]
    fn a_bad_setting_is_a_failure_and_a_debug_build_worth_knowing() {
        for (is_debug, settings, states) in [
            (false, Ok(vec![]), [Fine, Fine]),
            (
                true,
                Ok(vec!["RIPSTOP_FABRIC=tcp".to_owned()]),
                [Note, Fine],
            ),
            (false, Err("RIPSTOP_X is unknown".to_owned()), [Fine, Fail]),
        ] {
            let findings = VersionFacts { is_debug, settings }.findings();
            let found: Vec<_> = findings.iter().map(|finding| finding.state).collect();
            assert_eq!(found, states, "{findings:?}");
        }
    }

    #[test]
    fn only_settings_that_were_set_are_listed() {
        let mut settings = Settings::new();
        settings.set("RIPSTOP_FABRIC", "tcp").unwrap();
        let listed = VersionFacts::observe(Ok(&settings)).settings.unwrap();
        assert_eq!(listed, ["RIPSTOP_FABRIC=tcp"]);
    }
}
