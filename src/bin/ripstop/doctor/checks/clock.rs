//! The clocks: how dear it is to read the time, and whether nodes agree on it.

use crate::{doctor::finding::CheckFinding, system_files::SystemFiles};

/// What is known about clocks.
#[derive(Debug)]
pub(in crate::doctor) struct ClockFacts {
    /// The kernel's clock source, such as `tsc`.
    source: Option<String>,
    /// A program that keeps the time, if one runs where this process can see it.
    keeper: Option<String>,
}

impl ClockFacts {
    pub(in crate::doctor) fn observe(files: &dyn SystemFiles) -> Self {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        Self {
            source: files.text(source),
            keeper: keeper(files),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![self.source_finding(), self.keeper_finding()]
    }

    fn source_finding(&self) -> CheckFinding {
        const CHECK: &str = "time.source";
        match self.source.as_deref() {
            Some(source) if READ_BY_PROCESSORS.contains(&source) => {
                CheckFinding::ok(CHECK, format!("the clock source is {source}"))
            }
            Some(source) => CheckFinding::warn(
                CHECK,
                format!("the clock source is {source}"),
                "reading the time then takes a system call or an access to a device instead of about 20 ns, and ranks read it \
                 when they wait",
                "see `dmesg | grep -i clocksource` for the reason; `tsc=reliable` on the kernel's command line, if the \
                 processor's counter is sound",
            ),
            None => CheckFinding::skip(CHECK, "the kernel does not tell its clock source here"),
        }
    }

    fn keeper_finding(&self) -> CheckFinding {
        const CHECK: &str = "time.synchronized";
        match &self.keeper {
            Some(keeper) => CheckFinding::ok(CHECK, format!("{keeper} keeps the time")),
            None => CheckFinding::skip(
                CHECK,
                "no time service is visible from here; Ripstop does not compare clocks of nodes",
            ),
        }
    }
}

fn keeper(files: &dyn SystemFiles) -> Option<String> {
    let processes = files.names("/proc").into_iter();
    let numbered = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let mut names = numbered
        .take(PROCESSES_MAX)
        .filter_map(|pid| files.text(&format!("/proc/{pid}/comm")));
    names.find(|name| KEEPERS.contains(&name.as_str()))
}

/// Clock sources that a processor reads without the kernel.
const READ_BY_PROCESSORS: [&str; 5] = [
    "tsc",
    "arch_sys_counter",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "riscv_clocksource",
];

/// Names of time services, as the kernel shortens them.
const KEEPERS: [&str; 7] = [
    "chronyd",
    "ntpd",
    "ntpsec",
    "openntpd",
    "systemd-timesyn",
    "ptp4l",
    "phc2sys",
];

/// So many names are read in a few milliseconds.
const PROCESSES_MAX: usize = 5000;

#[cfg(test)]
mod tests {
    use super::ClockFacts;
    use crate::{
        doctor::finding::CheckState::{Ok as Fine, Skip, Warn},
        system_files::made_up::MadeUpFiles,
    };

    #[test]
    fn a_slow_clock_source_is_a_warning() {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        for (files, states) in [
            (
                vec![(source, "tsc"), ("/proc/77/comm", "chronyd")],
                [Fine, Fine],
            ),
            (
                vec![(source, "hpet"), ("/proc/77/comm", "sshd")],
                [Warn, Skip],
            ),
            (vec![(source, "acpi_pm")], [Warn, Skip]),
            (vec![("/proc/self/comm", "ptp4l")], [Skip, Skip]),
        ] {
            let findings = ClockFacts::observe(&MadeUpFiles::new(&files)).findings();
            let found: Vec<_> = findings.iter().map(|finding| finding.state).collect();
            assert_eq!(found, states, "{files:?} {findings:?}");
        }
    }
}
