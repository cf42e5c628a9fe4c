//! `ripstop perf`: measures messages with the calls of the public API, as an application makes them.
//!
//! The process is one rank: `ripstop run -n 2 -- ripstop perf latency`. Rank 0 prints. `latency`, `bandwidth`, `bibandwidth`,
//! `rate` and `matching` do the same as `benches/compare/p2p.c`, so that the two can be compared.

mod absence;
mod allocations;
mod buffers;
pub(crate) mod clock;
mod collective;
mod collective_calls;
mod counts;
mod death;
mod faces;
mod flood;
mod idle;
mod latency;
mod matching;
mod meet;
mod netpipe;
mod onesided;
pub(crate) mod options;
mod overlap;
mod overlap_activity;
mod persistent;
pub(crate) mod report;
mod samples;
mod startup;
mod stream;
mod threads;
mod windows;

use std::{error::Error, process::ExitCode, time::Duration};

use clap::Subcommand;
use ripstop::{Builder, Comm, Runtime};

use self::{
    report::{ResultReport, ResultRow},
    windows::{PerfRmaOp, WindowBench},
};
use crate::stderr_lines::print_line;

/// Measure messages between ranks: run it as a rank, `ripstop run -n 2 -- ripstop perf ...`
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PerfArgs {
    #[command(subcommand)]
    program: PerfProgram,
}

/// The end of the help of subcommands that share their arguments with others.
macro_rules! example {
    ($words:literal) => {
        concat!(
            "Example:\n  ripstop run -n 2 --bind core -- ripstop perf ",
            $words
        )
    };
}

#[derive(Debug, Subcommand)]
enum PerfProgram {
    Latency(latency::LatencyArgs),
    #[command(after_help = example!("bandwidth --size 8K,64K,1M --json"))]
    Bandwidth(stream::StreamArgs),
    /// Like bandwidth, but both ranks send and receive a window at the same time
    #[command(after_help = example!("bibandwidth --size 8K,64K,1M"))]
    Bibandwidth(stream::StreamArgs),
    Rate(stream::RateArgs),
    Matching(matching::MatchingArgs),
    Netpipe(netpipe::NetpipeArgs),
    /// Writing to the other rank's memory, by the driver of shared memory alone
    #[command(after_help = example!("put --size 8,4K,1M"))]
    Put(onesided::OneSidedArgs),
    /// Reading the other rank's memory, by the driver of shared memory alone
    #[command(after_help = example!("get --size 8,4K,1M"))]
    Get(onesided::OneSidedArgs),
    /// Post, start, put, complete, wait: an epoch between two neighbors, both ways at once
    #[command(after_help = example!("pscw --size 8,4K"))]
    Pscw(windows::WindowArgs),
    /// One put from each rank, and a fence
    #[command(after_help = example!("fence --size 8,4K"))]
    Fence(windows::WindowArgs),
    /// A put under a lock, and a flush; the target does nothing
    #[command(after_help = example!("lock-flush --size 8,4K"))]
    LockFlush(windows::WindowArgs),
    /// A get under a lock, and a flush
    #[command(after_help = example!("get-flush --size 8,4K"))]
    GetFlush(windows::WindowArgs),
    /// A sum of 64-bit numbers under a lock, and a flush
    #[command(after_help = example!("accumulate --size 8,4K"))]
    Accumulate(windows::WindowArgs),
    /// An addition to one number under a lock
    #[command(after_help = example!("fetch-add --json"))]
    FetchAdd(windows::WindowArgs),
    /// A compare-and-swap of one number under a lock
    #[command(after_help = example!("cas --json"))]
    Cas(windows::WindowArgs),
    /// 64 puts under a lock, and a flush
    #[command(after_help = example!("put-stream --size 4K,64K,1M"))]
    PutStream(windows::WindowArgs),
    /// 64 gets under a lock
    #[command(after_help = example!("get-stream --size 4K,64K,1M"))]
    GetStream(windows::WindowArgs),
    Collective(collective::CollectiveArgs),
    Death(death::DeathArgs),
    Faces(faces::FacesArgs),
    Flood(flood::FloodArgs),
    Idle(idle::IdleArgs),
    Meet(meet::MeetArgs),
    Overlap(overlap::OverlapArgs),
    Startup(startup::StartupArgs),
    Threads(threads::ThreadsArgs),
}

/// What is measured: Ripstop with its own drivers, or a baseline for them.
#[derive(Debug)]
pub(crate) struct PerfSubject {
    /// Name of the baseline, if it is one.
    pub(crate) baseline: Option<&'static str>,
    /// Settings of the runtime that measures.
    pub(crate) builder: Builder,
}

/// This rank and the one it talks to.
#[derive(Debug)]
struct PerfRankPair<'a> {
    baseline: Option<&'static str>,
    runtime: &'a Runtime,
    world: &'a Comm,
    me: usize,
    other: usize,
}

/// An error of any kind that ends a measurement.
type PerfError = Box<dyn Error>;

/// Measures, as one rank of a job.
pub(crate) fn run(args: &PerfArgs, subject: PerfSubject) -> ExitCode {
    match measure(args, subject) {
        Ok(code) => code,
        Err(trouble) => {
            print_line("ripstop perf", &trouble.to_string());
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &PerfArgs, subject: PerfSubject) -> Result<ExitCode, PerfError> {
    let PerfArgs { program } = args;
    let PerfSubject { baseline, builder } = subject;
    if let PerfProgram::Put(args) | PerfProgram::Get(args) = program {
        return onesided::run(program.name(), args, baseline);
    }
    if let PerfProgram::Startup(args) = program {
        return startup::run(args);
    }
    let runtime = builder.init()?;
    let world = runtime.world();
    if let Some(sentence) = program.invalid_reason(world.size()) {
        return Ok(refuse(world.rank() == 0, &sentence));
    }
    let (me, size) = (world.rank(), world.size());
    let pair = PerfRankPair {
        baseline,
        runtime: &runtime,
        world: &world,
        me,
        other: (me + 1) % size,
    };
    let (json, lines) = program.printing();
    let mut report = ResultReport::new(me, json, lines);
    match program {
        PerfProgram::Threads(args) => threads::run(&pair, args, &mut report)?,
        _ => runtime.block_on(pair.run(program, &mut report))?,
    }
    drop(world);
    runtime.close()?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the job: one rank prints the reason, and the others stay silent.
fn refuse(speaks: bool, sentence: &str) -> ExitCode {
    if !speaks {
        return ExitCode::SUCCESS;
    }
    print_line("ripstop perf", sentence);
    ExitCode::FAILURE
}

impl PerfRankPair<'_> {
    async fn run(&self, program: &PerfProgram, report: &mut ResultReport) -> Result<(), PerfError> {
        match program {
            PerfProgram::Latency(args) => latency::run(self, args, report).await,
            PerfProgram::Bandwidth(args) => stream::bandwidth(self, args, false, report).await,
            PerfProgram::Bibandwidth(args) => stream::bandwidth(self, args, true, report).await,
            PerfProgram::Rate(args) => stream::rate(self, args, report).await,
            PerfProgram::Matching(args) => matching::run(self, args, report).await,
            PerfProgram::Netpipe(args) => netpipe::run(self, args, report).await,
            PerfProgram::Pscw(args)
            | PerfProgram::Fence(args)
            | PerfProgram::LockFlush(args)
            | PerfProgram::GetFlush(args)
            | PerfProgram::Accumulate(args)
            | PerfProgram::FetchAdd(args)
            | PerfProgram::Cas(args)
            | PerfProgram::PutStream(args)
            | PerfProgram::GetStream(args) => windows::run(self, args, program.way(), report).await,
            PerfProgram::Collective(args) => collective::run(self, args, report).await,
            PerfProgram::Death(_) => death::run(self, report).await,
            PerfProgram::Faces(args) => faces::run(self, args, report).await,
            PerfProgram::Flood(args) => flood::run(self, args, report).await,
            PerfProgram::Idle(args) => idle::run(self, args, report).await,
            PerfProgram::Meet(_) => meet::run(self, report).await,
            PerfProgram::Overlap(args) => overlap::run(self, args, report).await,
            PerfProgram::Put(_) | PerfProgram::Get(_) | PerfProgram::Startup(_) => {
                unreachable!("measured without a runtime")
            }
            PerfProgram::Threads(_) => unreachable!("its threads wait by themselves"),
        }
    }

    /// Adds the setup of this rank to a row.
    fn signed(&self, row: ResultRow) -> ResultRow {
        let settings = self.runtime.settings();
        let value = |name| {
            let row = settings.iter().find(|row| row.name == name);
            row.map_or_else(String::new, |row| row.value.clone())
        };
        let row = row
            .field("reactor", self.runtime.choices().reactor)
            .field("progress", value("RIPSTOP_PROGRESS"))
            .field("fabric", value("RIPSTOP_FABRIC"));
        match self.baseline {
            Some(name) => row.field("baseline", name),
            None => row,
        }
    }
}

impl PerfProgram {
    fn name(&self) -> &'static str {
        match self {
            Self::Latency(_) => "latency",
            Self::Bandwidth(_) => "bandwidth",
            Self::Bibandwidth(_) => "bibandwidth",
            Self::Rate(_) => "rate",
            Self::Matching(_) => "matching",
            Self::Netpipe(_) => "netpipe",
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::Pscw(_)
            | Self::Fence(_)
            | Self::LockFlush(_)
            | Self::GetFlush(_)
            | Self::Accumulate(_)
            | Self::FetchAdd(_)
            | Self::Cas(_)
            | Self::PutStream(_)
            | Self::GetStream(_) => self.way().name(),
            Self::Collective(_) => "collective",
            Self::Death(_) => "death",
            Self::Faces(_) => "faces",
            Self::Flood(_) => "flood",
            Self::Idle(_) => "idle",
            Self::Meet(_) => "meet",
            Self::Overlap(_) => "overlap",
            Self::Startup(_) => "startup",
            Self::Threads(_) => "threads",
        }
    }

    /// Returns the action that a measurement of windows times.
    const fn way(&self) -> WindowBench {
        match self {
            Self::Fence(_) => WindowBench::Fence,
            Self::LockFlush(_) => WindowBench::One(PerfRmaOp::Put),
            Self::GetFlush(_) => WindowBench::One(PerfRmaOp::Get),
            Self::Accumulate(_) => WindowBench::One(PerfRmaOp::Accumulate),
            Self::FetchAdd(_) => WindowBench::One(PerfRmaOp::FetchAdd),
            Self::Cas(_) => WindowBench::One(PerfRmaOp::CompareSwap),
            Self::PutStream(_) => WindowBench::Stream(PerfRmaOp::Put),
            Self::GetStream(_) => WindowBench::Stream(PerfRmaOp::Get),
            _ => WindowBench::Pscw,
        }
    }

    /// Returns whether to print JSON, and the number of lines.
    fn printing(&self) -> (bool, usize) {
        match self {
            Self::Latency(args) => (args.common.json, args.lines()),
            Self::Bandwidth(args) | Self::Bibandwidth(args) => (args.common.json, args.lines()),
            Self::Rate(args) => (args.common.json, 1),
            Self::Matching(args) => (args.common.json, args.lines()),
            Self::Netpipe(args) => (args.common.json, args.lines()),
            Self::Put(args) | Self::Get(args) => (args.common.json, args.lines()),
            Self::Pscw(args)
            | Self::Fence(args)
            | Self::LockFlush(args)
            | Self::GetFlush(args)
            | Self::Accumulate(args)
            | Self::FetchAdd(args)
            | Self::Cas(args)
            | Self::PutStream(args)
            | Self::GetStream(args) => (args.common.json, args.lines(self.way())),
            Self::Collective(args) => (args.common.json, args.lines()),
            Self::Death(args) => (args.json, 1),
            Self::Faces(args) => (args.common.json, args.lines()),
            Self::Flood(args) => (args.json, args.lines()),
            Self::Idle(args) => (args.json, 1),
            Self::Meet(args) => (args.json, 1),
            Self::Overlap(args) => (args.json, args.lines()),
            Self::Startup(args) => (args.is_json(), args.lines()),
            Self::Threads(args) => (args.json, args.lines()),
        }
    }

    /// Returns why the measurement cannot run with these arguments or this many ranks, and what to change.
    fn invalid_reason(&self, ranks: usize) -> Option<String> {
        self.refuses_ranks(ranks).or_else(|| match self {
            Self::Netpipe(args) => args.invalid_reason(),
            Self::Collective(args) => args.invalid_reason(),
            Self::FetchAdd(args) | Self::Cas(args) => args.invalid_reason(self.way()),
            _ => None,
        })
    }

    fn refuses_ranks(&self, ranks: usize) -> Option<String> {
        let (fits, needs, least) = match self {
            Self::Idle(_)
            | Self::Collective(_)
            | Self::Death(_)
            | Self::Flood(_)
            | Self::Startup(_) => (ranks >= 2, "at least 2 ranks", 2),
            Self::Meet(_) => (
                ranks >= 4 && ranks.is_multiple_of(2),
                "4 ranks or another even number above",
                4,
            ),
            _ => (ranks == 2, "2 ranks", 2),
        };
        let name = self.name();
        let are = if ranks == 1 {
            "this process is alone".to_owned()
        } else {
            format!("this job has {ranks}")
        };
        let sentence = format!(
            "`ripstop perf {name}` needs {needs} and {are}: start it with `ripstop run -n {least} -- ripstop perf {name}`"
        );
        (!fits).then_some(sentence)
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected 0.001 to {SECONDS_MAX} seconds");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.001..=SECONDS_MAX).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(wrong())
    }
}

const SECONDS_MAX: f64 = 86_400.0;

const TAG: u32 = 1;
const TAG_ACK: u32 = 2;
const TAG_TALLY: u32 = 3;

const EXAMPLES: &str = "\
Examples:
  ripstop run -n 2 --bind core -- ripstop perf latency --size 8,4K,1M
  ripstop run -n 2 --bind core -- ripstop perf rate --json
  ripstop run -n 4 -- ripstop perf collective barrier all_reduce --size 8,64K
  ripstop run -n 2 -- ripstop perf idle --seconds 5
  mpiexec.hydra -n 64 ripstop perf startup
  RIPSTOP_PROGRESS=inline ripstop run -n 2 --bind core -- ripstop perf latency

Figures count both ranks: copies, system calls, wakes and allocations per message are in the JSON lines.";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn program(words: &[&str]) -> PerfProgram {
        let words = [&["perf"], words].concat();
        let cli: Cli = clap::Parser::try_parse_from(words).unwrap();
        cli.args.program
    }

    #[test]
    fn the_wrong_number_of_ranks_is_refused_with_the_command_to_use() {
        let sentence = program(&["latency"]).invalid_reason(3).unwrap();
        assert!(sentence.contains("this job has 3") && sentence.contains("ripstop run -n 2"));
        let alone = program(&["idle"]).invalid_reason(1).unwrap();
        assert!(alone.contains("alone") && alone.contains("at least 2"));
        assert_eq!(program(&["idle"]).invalid_reason(8), None);
        assert_eq!(program(&["rate"]).invalid_reason(2), None);
        let odd = program(&["meet"]).invalid_reason(5).unwrap();
        assert!(odd.contains("even") && odd.contains("ripstop run -n 4"));
        assert_eq!(program(&["meet"]).invalid_reason(64), None);
    }

    #[test]
    fn what_the_comparison_asks_for_is_understood() {
        let sizes = program(&["bandwidth", "--size", "8192,16384", "--json"]);
        assert_eq!(sizes.printing(), (true, 2));
        assert_eq!(
            program(&["matching", "--depth", "0,10000"]).printing(),
            (false, 4)
        );
        assert_eq!(program(&["overlap"]).printing(), (false, 2));
        let threads = [
            "threads",
            "--threads",
            "1,2,4",
            "--seconds",
            "0.3",
            "--json",
        ];
        assert_eq!(program(&threads).printing(), (true, 12));
        let faces = ["faces", "--n", "64,128,256", "--json"];
        assert_eq!(program(&faces).printing(), (true, 9));
        assert_eq!(program(&["latency", "--size", "8"]).printing(), (false, 1));
    }

    #[test]
    fn the_computing_rank_is_accepted_only_where_a_rank_computes() {
        let collective = |words: &[&str]| program(&[&["collective", "barrier"], words].concat());
        for words in [&["--overlap"][..], &["--away", "5"]] {
            let words = [words, &["--computing", "1"]].concat();
            assert_eq!(collective(&words).invalid_reason(2), None, "{words:?}");
        }
        assert!(
            collective(&["--computing", "1"])
                .invalid_reason(2)
                .is_some()
        );
        assert_eq!(program(&["flood"]).invalid_reason(65), None);
        assert!(
            program(&["flood"])
                .invalid_reason(1)
                .unwrap()
                .contains("2 ranks")
        );
    }

    #[test]
    fn a_number_has_no_other_length_than_its_own() {
        for name in ["fetch-add", "cas"] {
            assert_eq!(program(&[name]).printing(), (false, 1));
            assert_eq!(program(&[name, "--size", "8"]).invalid_reason(2), None);
            let why = program(&[name, "--size", "8,4K"])
                .invalid_reason(2)
                .unwrap();
            assert!(why.contains("--size 4096") && why.contains(name), "{why}");
        }
        assert_eq!(
            program(&["accumulate", "--size", "4K"]).invalid_reason(2),
            None
        );
    }

    #[test]
    fn a_range_without_a_length_is_refused() {
        for words in [
            &["--min", "2M", "--max", "1M"][..],
            &["--min", "3", "--max", "3"],
            &["--min", "16M", "--max", "64M", "--how", "single,stream"],
        ] {
            let why = program(&[&["netpipe"], words].concat())
                .invalid_reason(2)
                .unwrap();
            assert!(why.contains("--min"), "{why}");
        }
        let long = ["netpipe", "--min", "16M", "--max", "64M", "--how", "single"];
        assert_eq!(program(&long).invalid_reason(2), None);
        assert_eq!(program(&["netpipe"]).invalid_reason(2), None);
    }

    #[test]
    fn a_computation_is_much_longer_than_the_head_start_that_it_gets() {
        let asked = |ms| {
            let words = ["perf", "overlap", "--compute-ms", ms];
            <Cli as clap::Parser>::try_parse_from(words).is_ok()
        };
        assert!(asked("20") && !asked("19"));
    }

    #[test]
    fn a_time_is_a_positive_number_of_seconds() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["", "x", "0", "-1", "nan", "inf", "1e300"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
