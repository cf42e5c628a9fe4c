//! Whether one rank may copy from another one's memory.

use crate::{doctor::finding::CheckFinding, system_files::SystemFiles};

/// What is known about copies between processes.
#[derive(Debug)]
pub(in crate::doctor) struct CopyingFacts {
    /// The shared-memory driver's answer: a sentence about copies.
    driver: Result<String, String>,
    /// Value of Yama's setting, if the kernel has Yama.
    scope: Option<String>,
}

impl CopyingFacts {
    pub(in crate::doctor) fn observe(
        files: &dyn SystemFiles,
        driver: Result<String, String>,
    ) -> Self {
        Self {
            driver,
            scope: files.text("/proc/sys/kernel/yama/ptrace_scope"),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        const CHECK: &str = "copying.single";
        let finding = match &self.driver {
            Ok(found) if !found.contains("twice") => {
                CheckFinding::ok(CHECK, self.with_scope(found))
            }
            Ok(found) => CheckFinding::warn(
                CHECK,
                self.with_scope(found),
                "a long message between ranks of one node then passes through a buffer, which takes about twice the time",
                match self.scope.as_deref() {
                    Some("2" | "3") => "set kernel.yama.ptrace_scope to 0 or 1",
                    _ => {
                        "allow process_vm_readv and process_vm_writev in the container's seccomp profile (with docker, \
                         --cap-add SYS_PTRACE)"
                    }
                },
            ),
            Err(_) => CheckFinding::skip(CHECK, "ranks share no memory here; see memory.shared"),
        };
        vec![finding]
    }

    fn with_scope(&self, found: &str) -> String {
        match self.scope.as_deref() {
            // Each rank allows all processes of its user to read it, which lifts this restriction.
            Some("1") => format!("{found} (ptrace_scope 1, which ranks lift for each other)"),
            _ => found.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CopyingFacts;
    use crate::{
        doctor::finding::CheckState::{Ok as Fine, Skip, Warn},
        system_files::made_up::MadeUpFiles,
    };

    #[test]
    fn two_copies_are_a_warning_and_ptrace_scope_1_is_none() {
        let once = || Ok("process_vm_readv works, so long messages are copied once".to_owned());
        let twice = |why: &str| Ok(format!("long messages are copied twice: {why}"));
        for (driver, scope, expected, word) in [
            (once(), None, Fine, "once"),
            (once(), Some("0"), Fine, "once"),
            (once(), Some("1"), Fine, "lift"),
            (
                twice("kernel.yama.ptrace_scope is 2"),
                Some("2"),
                Warn,
                "is 2",
            ),
            (twice("a seccomp filter"), None, Warn, "seccomp"),
            (Err("no memory".to_owned()), None, Skip, "memory.shared"),
        ] {
            let path = "/proc/sys/kernel/yama/ptrace_scope";
            let files = scope.map(|scope| (path, scope));
            let files = MadeUpFiles::new(files.as_slice());
            let findings = CopyingFacts::observe(&files, driver).findings();
            assert_eq!(findings[0].state, expected, "{findings:?}");
            assert!(findings[0].seen.contains(word), "{findings:?}");
            // Only the cause is named that is seen.
            let advice = &*findings[0].advice;
            let is_yama = scope == Some("2");
            assert_eq!(advice.contains("ptrace_scope"), is_yama, "{findings:?}");
            let is_filter = expected == Warn && !is_yama;
            assert_eq!(advice.contains("seccomp"), is_filter, "{findings:?}");
        }
    }
}
