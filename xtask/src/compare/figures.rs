//! The figures that are measured, and their targets, as a table of data.

use serde_json::Value;

use super::contestant::{Contestant, cores};
use super::{collectives, faces, tcp, threads, windows};

/// A job: one launch per contestant and repeat, and the rows of the table that come from it.
#[derive(Debug)]
pub(super) struct CompareJob {
    pub(super) group: &'static str,
    pub(super) ranks: u32,
    pub(super) peer_program: Option<&'static str>,
    pub(super) peer_args: Vec<String>,
    pub(super) ours: OwnProgram,
    pub(super) our_args: Vec<String>,
    /// Options of `ripstop run`.
    pub(super) our_launch: &'static [&'static str],
    pub(super) contestants: Vec<Contestant>,
    /// Contestants whose figures the table shows beside Ripstop's.
    pub(super) columns: &'static [Contestant],
    /// True if all ranks share a core.
    pub(super) one_core: bool,
    /// True if the ranks are on hosts, [`per_host`](Self::per_host) on each.
    pub(super) between_hosts: bool,
    pub(super) per_host: u32,
    pub(super) repeats_max: usize,
    pub(super) rows: Vec<CompareRow>,
}

/// The program that a job starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnProgram {
    /// `ripstop perf ...`
    Perf,
    /// An example by name.
    Example(&'static str),
}

impl OwnProgram {
    /// Returns the name of the example; `None` if the program is none.
    pub(super) const fn example(self) -> Option<&'static str> {
        match self {
            Self::Perf => None,
            Self::Example(name) => Some(name),
        }
    }
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct CompareRow {
    pub(super) label: String,
    pub(super) contestant: Contestant,
    pub(super) ours: FigureSelector,
    pub(super) theirs: FigureSelector,
    pub(super) target: RatioTarget,
}

/// The limit on the ratio of Ripstop's figure to the best of `against`; without `against`, the limit on the figure itself.
#[derive(Debug)]
pub(super) struct RatioTarget {
    pub(super) against: Vec<(Contestant, FigureSelector)>,
    pub(super) limit: f64,
    pub(super) method: CompareMethod,
}

/// Comparison of two figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareMethod {
    Ratio,
    /// The difference of percentages, which may be 0. It is shown, and has no limit.
    Difference,
}

impl RatioTarget {
    pub(super) const fn ratio(against: Vec<(Contestant, FigureSelector)>, limit: f64) -> Self {
        let by = CompareMethod::Ratio;
        Self {
            against,
            limit,
            method: by,
        }
    }

    pub(super) const fn shown(against: Vec<(Contestant, FigureSelector)>) -> Self {
        Self {
            against,
            limit: f64::NEG_INFINITY,
            method: CompareMethod::Difference,
        }
    }

    /// Sets a limit on the figure alone.
    pub(super) const fn alone(limit: f64) -> Self {
        Self::ratio(Vec::new(), limit)
    }
}

/// Selects a figure from the records of a launch.
#[derive(Clone, Debug)]
pub(super) struct FigureSelector {
    wanted: Vec<(&'static str, Value)>,
    pub(super) field: &'static str,
    pub(super) better: BetterDirection,
}

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BetterDirection {
    Lower,
    Higher,
}

impl BetterDirection {
    /// Returns the better of two figures.
    pub(super) fn of(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Lower => one.min(other),
            Self::Higher => one.max(other),
        }
    }
}

impl FigureSelector {
    pub(super) fn new(program: &'static str, field: &'static str, better: BetterDirection) -> Self {
        Self {
            wanted: vec![("program", program.into())],
            field,
            better,
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.wanted.push((name, value.into()));
        self
    }

    pub(super) fn matches(&self, record: &Value) -> bool {
        self.wanted
            .iter()
            .all(|(name, value)| record.get(name) == Some(value))
    }
}

impl CompareRow {
    /// Makes a row of Ripstop against the better of the two peers, by the same figure.
    pub(super) fn against_peers(
        label: impl Into<String>,
        pick: &FigureSelector,
        limit: f64,
    ) -> Self {
        Self::new(label, pick, RatioTarget::ratio(Self::peers(pick), limit))
    }

    /// Selects the same figure of both peers.
    pub(super) fn peers(pick: &FigureSelector) -> Vec<(Contestant, FigureSelector)> {
        PEERS.map(|peer| (peer, pick.clone())).to_vec()
    }

    pub(super) fn new(
        label: impl Into<String>,
        pick: &FigureSelector,
        target: RatioTarget,
    ) -> Self {
        Self {
            label: label.into(),
            contestant: Contestant::Ours,
            ours: pick.clone(),
            theirs: pick.clone(),
            target,
        }
    }

    pub(super) fn by(mut self, who: Contestant) -> Self {
        self.contestant = who;
        self
    }
}

impl CompareJob {
    pub(super) fn perf(group: &'static str, args: &str, rows: Vec<CompareRow>) -> Self {
        Self {
            group,
            ranks: 2,
            peer_program: Some("p2p"),
            peer_args: split_words(args),
            ours: OwnProgram::Perf,
            our_args: split_words(&format!("{args} --json")),
            our_launch: &[],
            contestants: vec![Contestant::Mpich, Contestant::OpenMpi, Contestant::Ours],
            columns: &PEERS,
            one_core: false,
            between_hosts: false,
            per_host: 1,
            repeats_max: usize::MAX,
            rows,
        }
    }

    fn example(
        group: &'static str,
        program: &'static str,
        args: &str,
        rows: Vec<CompareRow>,
    ) -> Self {
        Self {
            peer_program: Some(program),
            ours: OwnProgram::Example(program),
            ..Self::perf(group, args, rows)
        }
    }

    /// Makes a job of figures with a limit of their own and no peer beside them; `args` and their time are for Ripstop alone.
    pub(super) fn alone(group: &'static str, args: &str, rows: Vec<CompareRow>) -> Self {
        Self {
            peer_program: None,
            contestants: vec![Contestant::Ours],
            repeats_max: 2,
            ..Self::perf(group, args, rows)
        }
    }

    pub(super) fn on(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Returns the number of hosts that the job needs.
    pub(super) const fn hosts(&self) -> u32 {
        self.ranks.div_ceil(self.per_host)
    }

    /// Compares with the other contestants only, in rows that have others.
    pub(super) fn leave_out(&mut self, who: Contestant) {
        for target in self.rows.iter_mut().map(|row| &mut row.target) {
            if target.against.len() > 1 {
                target.against.retain(|(other, _)| *other != who);
            }
        }
    }

    pub(super) fn title(&self) -> String {
        let core = if self.one_core { " on one core" } else { "" };
        let place = if self.between_hosts {
            tcp::BETWEEN_HOSTS
        } else {
            ""
        };
        format!("{}, {} ranks{core}{place}", self.group, self.ranks)
    }

    pub(super) fn repeats(&self, asked: usize) -> usize {
        asked.min(self.repeats_max)
    }

    pub(super) fn bind(&self) -> &'static str {
        if !self.one_core && usize::try_from(self.ranks).is_ok_and(|ranks| ranks <= cores()) {
            "core"
        } else {
            "none"
        }
    }
}

/// Returns the jobs whose group is in `only`, or all if it is empty; of these, the rows whose names contain one of `rows`.
///
/// # Errors
/// Names the group that does not exist, or the text that no row contains.
pub(super) fn job_catalog(
    only: &[String],
    rows: &[String],
    between_hosts: bool,
) -> Result<Vec<CompareJob>, String> {
    let mut jobs = all();
    if between_hosts {
        jobs.extend(tcp::jobs_between_hosts());
    }
    if let Some(unknown) = only
        .iter()
        .find(|name| jobs.iter().all(|job| job.group != name.as_str()))
    {
        let mut groups: Vec<_> = jobs.iter().map(|job| job.group).collect();
        groups.dedup();
        return Err(format!(
            "--only {unknown}: no comparison has this name; choose from {}",
            groups.join(", ")
        ));
    }
    let wanted = |job: &CompareJob| only.is_empty() || only.iter().any(|name| name == job.group);
    let jobs = jobs.into_iter().filter(wanted).collect();
    with_rows(jobs, rows)
}

/// Keeps the jobs that have such rows, with no other rows.
fn with_rows(mut jobs: Vec<CompareJob>, texts: &[String]) -> Result<Vec<CompareJob>, String> {
    let labels = || jobs.iter().flat_map(|job| &job.rows).map(|row| &row.label);
    if let Some(unknown) = texts
        .iter()
        .find(|text| !labels().any(|label| label.contains(text.as_str())))
    {
        return Err(format!(
            "--row {unknown:?}: no row has this in its name; --list prints the names"
        ));
    }
    if !texts.is_empty() {
        for job in &mut jobs {
            let wanted =
                |row: &CompareRow| texts.iter().any(|text| row.label.contains(text.as_str()));
            job.rows.retain(wanted);
        }
        jobs.retain(|job| !job.rows.is_empty());
    }
    Ok(jobs)
}

const PEERS: [Contestant; 2] = [Contestant::Mpich, Contestant::OpenMpi];

fn all() -> Vec<CompareJob> {
    let mut jobs = vec![
        latency(),
        bandwidth("bandwidth"),
        bandwidth("bibandwidth"),
        rate(),
        threads::job(),
        matching(),
        ring(),
        faces::job(),
        halo(64, 2000),
        halo(128, 200),
        p3dfft(128, 2, 30),
        p3dfft(256, 2, 5),
        p3dfft(128, 4, 30),
        p3dfft(256, 4, 5),
        startup(2),
        startup(32),
        idle(2),
        idle(8),
        overlap(),
    ];
    jobs.extend(collectives::jobs());
    jobs.extend(windows::jobs());
    jobs.extend(tcp::jobs());
    jobs
}

fn latency() -> CompareJob {
    let pick = |size: u64| {
        FigureSelector::new("latency", "median_us", BetterDirection::Lower).with("size", size)
    };
    let sizes = [
        (8, "8 B", 0.8),
        (4096, "4 KiB", 0.9),
        (65536, "64 KiB", 0.95),
        (1_048_576, "1 MiB", 1.0),
    ];
    let mut rows = Vec::new();
    for (size, name, limit) in sizes {
        for (who, mode) in [
            (Contestant::OursInline, "inline"),
            (Contestant::Ours, "default"),
        ] {
            rows.push(
                CompareRow::against_peers(format!("latency {name}, {mode}"), &pick(size), limit)
                    .by(who),
            );
        }
    }
    let line = FigureSelector::new("line", "median_us", BetterDirection::Lower).with("kind", "one");
    let to_line = RatioTarget::ratio(vec![(Contestant::Line, line)], 3.0);
    rows.push(
        CompareRow::new("latency 8 B, inline / cache line", &pick(8), to_line)
            .by(Contestant::OursInline),
    );
    let to_inline = RatioTarget::ratio(vec![(Contestant::OursInline, pick(8))], 1.25);
    rows.push(CompareRow::new(
        "latency 8 B, default / inline",
        &pick(8),
        to_inline,
    ));
    let contestants = vec![
        Contestant::Mpich,
        Contestant::OpenMpi,
        Contestant::OursInline,
        Contestant::Ours,
        Contestant::Line,
    ];
    CompareJob {
        contestants,
        ..CompareJob::perf("latency", "latency --size 8,4096,65536,1048576", rows)
    }
}

fn bandwidth(program: &'static str) -> CompareJob {
    let row = |(size, name, limit): (u64, &str, f64)| {
        let pick =
            FigureSelector::new(program, "mb_per_s", BetterDirection::Higher).with("size", size);
        CompareRow::against_peers(format!("{program} {name}"), &pick, limit)
    };
    let sizes = [
        (8192, "8 KiB", 1.1),
        (16384, "16 KiB", 1.1),
        (65536, "64 KiB", 1.1),
        (262_144, "256 KiB", 1.0),
        (1_048_576, "1 MiB", 1.0),
    ];
    let args = format!("{program} --size 8192,16384,65536,262144,1048576");
    CompareJob::perf(program, &args, sizes.map(row).into())
}

fn rate() -> CompareJob {
    let pick = FigureSelector::new("rate", "million_per_s", BetterDirection::Higher);
    CompareJob::perf(
        "rate",
        "rate",
        vec![CompareRow::against_peers("rate 8 B, window 64", &pick, 1.2)],
    )
}

/// Compares Ripstop with 10 000 messages in front to Ripstop without; the peers' figures stand beside it.
fn matching() -> CompareJob {
    let pick = |kind: &str, depth: u64| {
        FigureSelector::new("matching", "median_us", BetterDirection::Lower)
            .with("kind", kind)
            .with("depth", depth)
    };
    let row = |kind: &str| {
        let target = RatioTarget::ratio(vec![(Contestant::Ours, pick(kind, 0))], 1.2);
        CompareRow::new(
            format!("10 000 {kind} / empty queue"),
            &pick(kind, 10_000),
            target,
        )
    };
    CompareJob::perf(
        "matching",
        "matching --depth 0,10000",
        vec![row("posted"), row("unexpected")],
    )
}

/// Compares the mean, not the median: with more ranks than cores, most samples are near zero and a few are whole time slices.
fn ring() -> CompareJob {
    let mut rows = Vec::new();
    for program in ["ring", "token", "barrier"] {
        let pick = FigureSelector::new(program, "mean_us", BetterDirection::Lower);
        for (peer, limit) in [(Contestant::Mpich, 0.01), (Contestant::OpenMpi, 1.2)] {
            let target = RatioTarget::ratio(vec![(peer, pick.clone())], limit);
            rows.push(CompareRow::new(
                format!("{program}, 8 ranks / {}", peer.name()),
                &pick,
                target,
            ));
        }
    }
    let ours = split_words("--json --seconds 1");
    CompareJob {
        our_args: ours,
        ..CompareJob::example("ring", "ring", "--seconds 1", rows).on(8)
    }
}

/// The peers count with the better of their two versions, with and without overlap.
fn halo(n: u64, steps: u64) -> CompareJob {
    let theirs = FigureSelector::new("halo", "median_us", BetterDirection::Lower).with("n", n);
    let ours = theirs.clone().with("mode", "overlap");
    let blocking = theirs.clone().with("mode", "blocking");
    let mut first = CompareRow::against_peers(format!("halo {n}, whole step"), &theirs, 0.95);
    first.ours = ours.clone();
    let own = RatioTarget::ratio(vec![(Contestant::Ours, blocking)], 1.0);
    let mut second = CompareRow::new(format!("halo {n}, overlap / blocking"), &ours, own);
    second.theirs = ours;
    let args = format!("--n {n} --steps {steps}");
    let job = CompareJob::example("halo", "halo", &args, vec![first, second]);
    CompareJob {
        our_args: split_words(&format!("{args} --mode both --json")),
        ..job
    }
}

/// There and back on FFTW's grid, in slabs. FFTW waits for its transposes, and so does Ripstop in the first row.
fn p3dfft(n: u64, ranks: u32, iters: u64) -> CompareJob {
    let pick =
        |program| FigureSelector::new(program, "median_us", BetterDirection::Lower).with("n", n);
    let row = |mode: &str| {
        let target = RatioTarget::ratio(vec![(Contestant::Fftw, pick("fftw"))], 1.2);
        let label = format!("p3dfft {n}, {ranks} ranks, {mode} / FFTW");
        CompareRow::new(label, &pick("p3dfft").with("mode", mode), target)
    };
    let args = format!("--n {n} --iters {iters}");
    let ours = format!("{args} --grid 1x{ranks} --no-check --json");
    CompareJob {
        ours: OwnProgram::Example("p3dfft"),
        our_args: split_words(&ours),
        contestants: vec![Contestant::Fftw, Contestant::Ours],
        ..CompareJob::example(
            "p3dfft",
            "fftw",
            &args,
            vec![row("blocking"), row("offload")],
        )
        .on(ranks)
    }
}

fn startup(ranks: u32) -> CompareJob {
    let pick = FigureSelector::new("wall", "wall_ms", BetterDirection::Lower);
    let rows = vec![CompareRow::against_peers(
        format!("start-up, {ranks} ranks"),
        &pick,
        0.5,
    )];
    let job = CompareJob::example("startup", "startup", "", rows).on(ranks);
    CompareJob {
        ours: OwnProgram::Example("hello"),
        our_args: Vec::new(),
        ..job
    }
}

fn idle(ranks: u32) -> CompareJob {
    let pick = FigureSelector::new("idle", "cpu_percent", BetterDirection::Lower);
    let target = RatioTarget::alone(1.0);
    let rows = vec![CompareRow::new(
        format!("idle, {ranks} ranks, % of one core"),
        &pick,
        target,
    )];
    CompareJob::alone("idle", "idle --seconds 5", rows).on(ranks)
}

fn overlap() -> CompareJob {
    CompareJob::alone("overlap", "overlap", overlap_rows(""))
}

/// Makes rows of the end of a transfer, as a share of the computation during which one side does not touch the runtime. Their
/// names begin with `prefix`.
pub(super) fn overlap_rows(prefix: &str) -> Vec<CompareRow> {
    let row = |busy: &str| {
        let pick =
            FigureSelector::new("overlap", "done_share", BetterDirection::Lower).with("busy", busy);
        let label = format!("{prefix}64 MiB while the {busy} computes");
        CompareRow::new(label, &pick, RatioTarget::alone(1.0))
    };
    vec![row("receiver"), row("sender")]
}

pub(super) fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{BetterDirection, FigureSelector, job_catalog};

    #[test]
    fn a_pick_takes_only_records_with_every_wanted_value() {
        let pick =
            FigureSelector::new("latency", "median_us", BetterDirection::Lower).with("size", 8);
        assert!(pick.matches(&json!({ "program": "latency", "size": 8, "peer": "mpich" })));
        assert!(!pick.matches(&json!({ "program": "latency", "size": 64 })));
        assert!(!pick.matches(&json!({ "program": "latency" })));
    }

    #[test]
    fn only_selects_groups_and_names_the_unknown_one() {
        let jobs = job_catalog(&["halo".to_owned()], &[], false).unwrap();
        assert_eq!(jobs.len(), 2);
        assert!(
            job_catalog(&["hola".to_owned()], &[], false)
                .unwrap_err()
                .contains("--only hola")
        );
    }

    #[test]
    fn a_text_selects_the_rows_that_have_it_and_an_unknown_one_is_named() {
        let pick =
            |only: &str, row: &str| job_catalog(&[only.to_owned()], &[row.to_owned()], false);
        let jobs = pick("collectives", "bcast 8 B").unwrap();
        let labels =
            |job: &super::CompareJob| job.rows.iter().map(|row| row.label.clone()).collect();
        let found: Vec<Vec<String>> = jobs.iter().map(labels).collect();
        let of = |ranks: u32| vec![format!("bcast 8 B, {ranks} ranks")];
        assert_eq!(found, [of(2), of(4), of(8)]);
        assert_eq!(jobs[0].peer_args, ["bcast", "--size", "8"]);
        assert!(pick("halo", "bcast").unwrap_err().contains("\"bcast\""));
    }
}
