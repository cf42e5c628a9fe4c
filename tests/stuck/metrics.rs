//! The files of `RIPSTOP_METRICS`, of jobs with real processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{GUARD, RIPSTOP, StuckJob, now};

/// The values of a file by name and labels, as `name{label="value",..}`.
type MetricValues = BTreeMap<String, f64>;

/// Reads a text in the format of Prometheus, version 0.0.4, and takes nothing that its specification does not have.
fn parse(text: &str) -> Result<MetricValues, String> {
    let mut values = MetricValues::new();
    let mut family: Option<(&str, &str)> = None;
    let mut known = BTreeSet::new();
    let body = text.strip_suffix('\n').ok_or("no newline at the end")?;
    let mut lines = body.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, _) = help.split_once(' ').ok_or(line)?;
            let of_kind = format!("# TYPE {name} ");
            let kind = lines.next().and_then(|line| line.strip_prefix(&of_kind));
            let kind = kind.ok_or_else(|| format!("no type of {name}"))?;
            let is_counter = name.ends_with("_total");
            if kind != if is_counter { "counter" } else { "gauge" } || !known.insert(name) {
                return Err(format!("{name} is a {kind}, or is there twice"));
            }
            family = Some((name, kind));
        } else if !line.starts_with('#') {
            let (name, kind) = family.ok_or_else(|| format!("no head before {line}"))?;
            let (series, value) = line.rsplit_once(' ').ok_or(line)?;
            let labels = series.strip_prefix(name).ok_or(line)?;
            check_labels(labels).ok_or_else(|| format!("bad labels: {line}"))?;
            let value: f64 = value.parse().map_err(|_| line)?;
            if !value.is_finite() || value < 0.0 && kind == "counter" {
                return Err(format!("bad value: {line}"));
            }
            if values.insert(series.to_owned(), value).is_some() {
                return Err(format!("there twice: {series}"));
            }
        }
    }
    Ok(values)
}

/// Returns `Some` if these are labels in braces, each with a name and a quoted value.
fn check_labels(labels: &str) -> Option<()> {
    let mut rest = labels.strip_prefix('{')?.strip_suffix('}')?;
    let mut names = BTreeSet::new();
    loop {
        let (name, value) = rest.split_once("=\"")?;
        let is_letter = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_fine = !name.is_empty() && name.chars().all(is_letter) && names.insert(name);
        let (_, after) = value.split_once('"').filter(|_| is_fine)?;
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return after.is_empty().then_some(()),
        }
    }
}

/// A directory for metrics, which goes with this value.
struct MetricsDirectory(PathBuf);

impl MetricsDirectory {
    fn new(name: &str) -> Self {
        let name = format!("ripstop-test-metrics-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        Self(directory)
    }

    fn start(&self, role: &str, more: &[(&str, &str)]) -> StuckJob {
        self.start_ranks(2, role, &[], more)
    }

    fn start_ranks(
        &self,
        ranks: u32,
        role: &str,
        options: &[&str],
        more: &[(&str, &str)],
    ) -> StuckJob {
        let directory = self.0.to_str().unwrap();
        let metrics = [
            ("RIPSTOP_METRICS", directory),
            ("RIPSTOP_METRICS_PERIOD", "1"),
        ];
        StuckJob::start_with(ranks, role, options, &[&metrics, more].concat())
    }

    /// Returns the file of a job of `ripstop run`, once it is there.
    fn file_of(&self, job: &StuckJob) -> Option<PathBuf> {
        let start = format!("ripstop-{}-0-", job.pid());
        let is_it = |name: &String| name.starts_with(&start) && name.ends_with(".prom");
        let name = names_in(&self.0).into_iter().find(is_it)?;
        Some(self.0.join(name))
    }

    /// Reads the file of a job again and again until its values are as wanted.
    #[track_caller]
    fn read_until(
        &self,
        job: &StuckJob,
        is_wanted: impl Fn(&MetricValues) -> bool,
    ) -> MetricValues {
        let end = now() + GUARD;
        loop {
            let file = self.file_of(job);
            let text = file.and_then(|file| fs::read_to_string(file).ok());
            let text = text.unwrap_or_default();
            if !text.is_empty() {
                let values = parse(&text).unwrap_or_else(|why| panic!("{why}:\n{text}"));
                if is_wanted(&values) {
                    return values;
                }
            }
            assert!(now() < end, "the last file is:\n{text}");
        }
    }

    /// Waits until a rank of the role `metered_survivors` has its own view open, and once more as one of those of `ranks` ranks.
    #[track_caller]
    fn wait_for_views(&self, rank: u32, ranks: usize) {
        let pid = fs::read_to_string(self.0.join(format!("pid-{rank}"))).unwrap();
        let end = now() + GUARD;
        loop {
            let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
            let views = links.filter(|link| link.to_string_lossy().contains("ripstop-view"));
            if views.count() > ranks {
                return;
            }
            assert!(now() < end, "rank {rank} has not opened all views");
        }
    }

    /// Ends the job in good order, and returns the names that are in the directory afterwards.
    fn names_after(&self, mut job: StuckJob) -> Vec<String> {
        fs::write(self.0.join("stop"), "").unwrap();
        assert!(job.0.wait().unwrap().success());
        names_in(&self.0)
    }
}

impl Drop for MetricsDirectory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Returns the sum of the values of this name that have these labels.
fn sum(values: &MetricValues, name: &str, labels: &str) -> f64 {
    let of_name = values.iter().filter(|(series, _)| {
        let of_name = series
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('{'));
        of_name.is_some_and(|series| series.contains(labels))
    });
    of_name.map(|(_, value)| value).sum()
}

#[test]
fn a_job_writes_what_its_ranks_do_and_removes_the_file_at_its_end() {
    let directory = MetricsDirectory::new("moves");
    let job = directory.start("metered", &[]);
    let values = directory.read_until(&job, |values| {
        let kinds = ["send", "recv", "collective"];
        kinds.iter().all(|kind| {
            let label = format!("kind=\"{kind}\"");
            sum(values, "ripstop_operations_total", &label) >= 4.0
        }) && sum(values, "ripstop_ranks", "not found") == 0.0
            && sum(values, "ripstop_agent_cpu_seconds_total", "") > 0.0
    });
    let labels = format!("job=\"{}\",node=\"", job.pid());
    assert!(
        values.keys().all(|series| series.contains(&labels)),
        "{values:#?}"
    );
    assert!(
        values.keys().all(|series| series.contains(",first=\"0\"")),
        "{values:#?}"
    );
    assert_eq!(sum(&values, "ripstop_ranks", ""), 2.0);
    assert!(
        !values.keys().any(|series| series.contains("rank=")),
        "{values:#?}"
    );
    assert_eq!(directory.names_after(job), ["stop"]);
}

#[test]
fn with_a_trace_the_bytes_and_waits_of_each_rank_are_there_if_wanted() {
    let directory = MetricsDirectory::new("by-rank");
    let trace = directory.0.join("trace");
    let more = [
        ("RIPSTOP_TRACE", trace.to_str().unwrap()),
        ("RIPSTOP_METRICS_BY_RANK", "on"),
    ];
    let job = directory.start("metered", &more);
    let ranks = ["rank=\"0\",", "rank=\"1\","];
    let values = directory.read_until(&job, |values| {
        ranks.iter().all(|rank| {
            let of = |name, label: &str| sum(values, name, &format!("{rank}{label}"));
            of("ripstop_bytes_total", "direction=\"sent\"") >= 300.0
                && of("ripstop_bytes_total", "direction=\"received\"") >= 300.0
                && of("ripstop_wait_seconds_total", "state=\"collective\"") > 0.0
        })
    });
    let sent = sum(&values, "ripstop_bytes_total", "sent");
    assert_eq!(sent % 100.0, 0.0, "each message has 100 bytes: {values:#?}");
    assert_eq!(directory.names_after(job).len(), 3, "the traces and `stop`");
}

#[test]
fn a_job_that_waits_shows_for_how_long_and_one_that_was_killed_leaves_a_file_to_the_next() {
    let directory = MetricsDirectory::new("killed");
    let job = directory.start("recv_ring", &[]);
    directory.read_until(&job, |values| {
        sum(values, "ripstop_operations_pending", "") == 2.0
            && sum(values, "ripstop_oldest_pending_seconds", "") > 1.0
            && sum(values, "ripstop_ranks", "state=\"waiting\"") == 2.0
    });
    let left = directory.file_of(&job).unwrap();
    drop(job);
    // The ranks end after their launcher, and the lock of the file with them.
    File::open(&left).unwrap().lock().unwrap();
    let next = directory.start("metered", &[]);
    directory.read_until(&next, |_| true);
    assert!(!left.exists());
    assert_eq!(directory.names_after(next), ["stop"]);
}

#[test]
fn when_the_rank_that_writes_is_killed_another_one_goes_on_with_the_file() {
    let directory = MetricsDirectory::new("survivors");
    let job = directory.start_ranks(4, "metered_survivors", &["--keep-going=ok"], &[]);
    let in_state = |values: &MetricValues, state: &str| {
        sum(values, "ripstop_ranks", &format!("state=\"{state}\""))
    };
    let sent = |values: &MetricValues| sum(values, "ripstop_operations_total", "kind=\"send\"");
    let values = directory.read_until(&job, |values| {
        in_state(values, "not found") == 0.0 && sent(values) >= 4.0
    });
    for rank in 0..4 {
        directory.wait_for_views(rank, 4);
    }
    let (first, mut before) = (directory.file_of(&job), sent(&values));
    for victim in 0..2_u8 {
        fs::write(directory.0.join(format!("kill-{victim}")), "").unwrap();
        let values = directory.read_until(&job, |values| {
            in_state(values, "ended") == f64::from(victim + 1) && sent(values) > before
        });
        assert_eq!(sum(&values, "ripstop_ranks", ""), 4.0, "{values:#?}");
        assert_eq!(directory.file_of(&job), first, "it has the same name");
        before = sent(&values);
    }
    let names = directory.names_after(job);
    assert!(
        names.iter().all(|name| !name.starts_with("ripstop-")),
        "{names:?}"
    );
}

#[test]
fn a_directory_that_is_missing_and_ranks_without_views_are_errors_at_the_start() {
    let refusal = |directory: &str, view: &str| {
        let mut command = Command::new(RIPSTOP);
        command
            .args(["run", "-n", "1", "--"])
            .arg(std::env::current_exe().unwrap());
        command.args(super::AS_RANK).stdin(Stdio::null());
        command.env(super::roles::ROLE, "metered");
        command.envs([("RIPSTOP_METRICS", directory), ("RIPSTOP_VIEW", view)]);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    let text = refusal("no/such/directory", "on");
    assert!(
        text.contains("RIPSTOP_METRICS is no/such/directory, and rank 0 cannot write"),
        "{text}"
    );
    assert!(text.contains("Name a directory that exists"), "{text}");
    let text = refusal(".", "off");
    assert!(
        text.contains("RIPSTOP_METRICS is set and RIPSTOP_VIEW is off"),
        "{text}"
    );
}

#[test]
fn the_parser_of_these_tests_takes_no_other_text() {
    let head = "# HELP a_total Text.\n# TYPE a_total counter\n";
    assert!(parse(&format!("{head}a_total{{b=\"c\"}} 1\n")).is_ok());
    for bad in [
        format!("{head}a_total{{b=\"c\"}} 1"),
        format!("{head}a_total{{b=\"c\"}} 1\na_total{{b=\"c\"}} 2\n"),
        format!("{head}a_total{{b=\"c\"}} -1\n"),
        format!("{head}a_total{{b=c}} 1\n"),
        format!("{head}other{{b=\"c\"}} 1\n"),
        format!("{head}{head}"),
        "a_total{b=\"c\"} 1\n".to_owned(),
        "# HELP a Text.\n# TYPE a counter\n".to_owned(),
    ] {
        assert!(parse(&bad).is_err(), "{bad}");
    }
}
