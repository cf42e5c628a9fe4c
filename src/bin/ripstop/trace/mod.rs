//! `ripstop trace` and `ripstop profile`: what the ranks of a job did, and which ranks they waited for.

mod arrows;
mod clocks;
mod files;
mod gzip_thread;
mod heat_map;
mod page;
mod perfetto;
mod picture;
pub(crate) mod profile;
mod proto_message;
mod span_tracks;
mod summary;
mod timeline;
mod timeline_cut;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use files::{JobTraces, KeptPart, is_no_file};
use profile::JobProfile;
use timeline::JobTimeline;
use timeline_cut::{TimelineCut, parse_ranks, parse_time};

use crate::stderr_lines::print_line;
use crate::stuck::find::FoundJob;

/// Draw what the ranks of a job did, from the files that they wrote with `RIPSTOP_TRACE`.
///
/// The timeline of all ranks is written as FILE.pftrace.gz, which ui.perfetto.dev opens, or as a page or a picture. A table says
/// how long each rank waited for its communication (exposed), and how long operations were in flight while it did not (hidden).
///
/// The exit code is 0 if everything was written, 1 if a file could not be read or written, and 2 for a mistake in the command
/// line.
#[derive(clap::Args, Debug)]
#[command(after_help = TRACE_EXAMPLES)]
pub(crate) struct TraceArgs {
    /// What RIPSTOP_TRACE was in the job, or the files of its ranks
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Write the timeline for Perfetto to this file [default: FILE.pftrace.gz, unless --html or --svg is given]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write one page that shows the timeline in any browser, without a network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write a picture of the timeline
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Only these ranks, as 0-3,7
    #[arg(long)]
    ranks: Option<String>,

    /// Only operations that end after this time, in seconds since the first one
    #[arg(long, value_name = "SECONDS", value_parser = parse_time)]
    from: Option<u64>,

    /// Only operations that begin before this time, in seconds since the first one
    #[arg(long, value_name = "SECONDS", value_parser = parse_time)]
    to: Option<u64>,

    /// Most memory that a viewer needs, in MiB: about 300 bytes for each operation or span. What begins later is left out
    #[arg(long, value_name = "MIB", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    max_mib: u32,

    /// Trust the wall clocks of several machines if no messages tell how they differ
    #[arg(long)]
    unaligned: bool,

    /// Print the table as JSON
    #[arg(long)]
    json: bool,
}

/// Say at which lines the ranks of a job waited, and for which ranks, from the files that they wrote with `RIPSTOP_TRACE`.
///
/// Of a job that runs, the command takes a process id instead, and says what the ranks of this machine have recorded so far, with
/// `RIPSTOP_PROFILE` or `RIPSTOP_TRACE`. The ranks do not stop for that. Operations in flight are missing, and so are the last
/// records of a rank that has not slept for long.
///
/// A late sender makes a receive wait until the message is sent, a late receiver makes a send wait until its receive is posted,
/// and imbalance makes a collective that needs all ranks wait until the last one has called it. `ripstop run` prints the same at
/// the end of a job if RIPSTOP_PROFILE is set.
#[derive(clap::Args, Debug)]
#[command(after_help = PROFILE_EXAMPLES)]
pub(crate) struct ProfileArgs {
    /// What RIPSTOP_TRACE was in the job, or the files of its ranks. Of a job that runs, the process id of a rank or of its
    /// launcher, or the number of a Slurm job [default: the only job of this user that runs]
    #[arg(value_name = "FILE|PID|JOB")]
    files: Vec<PathBuf>,

    /// Print everything as JSON
    #[arg(long)]
    json: bool,

    /// Print each rank and line as a table with commas
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Write a picture of the bytes that each rank sent to each other one, beside what is printed
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Trust the wall clocks of several machines if no messages tell how they differ
    #[arg(long)]
    unaligned: bool,
}

/// Memory that a viewer takes for an operation, in bytes.
const VIEWED_BYTES: usize = 300;

pub(crate) fn run(args: &TraceArgs) -> ExitCode {
    ended("ripstop trace", draw(args))
}

pub(crate) fn run_profile(args: &ProfileArgs) -> ExitCode {
    ended("ripstop profile", print_profile(args))
}

fn ended(command: &str, outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_line(command, &why);
            ExitCode::FAILURE
        }
    }
}

fn draw(args: &TraceArgs) -> Result<(), String> {
    let cut = wanted_cut(args).unwrap_or_else(|why| crate::reject("trace", &why));
    let kept = KeptPart {
        most: (args.max_mib as usize).saturating_mul((1 << 20) / VIEWED_BYTES),
        ranks: &cut.ranks,
    };
    let traces = JobTraces::read(&args.files, kept)?;
    let mut timeline = JobTimeline::new(traces, args.unaligned)?;
    timeline.cut(&cut, kept.most)?;
    timeline.lay_out();
    let mut written = Vec::new();
    if let Some(file) = &args.html {
        write_file(file, page::html(&timeline).as_bytes())?;
        written.push(file.clone());
    }
    if let Some(file) = &args.svg {
        write_file(file, picture::svg(&timeline).as_bytes())?;
        written.push(file.clone());
    }
    let only = args.html.is_none() && args.svg.is_none();
    if let Some(file) = args
        .output
        .clone()
        .or_else(|| only.then(|| default_output(args)))
    {
        let out = File::create(&file).map_err(|why| format!("{}: {why}", file.display()))?;
        perfetto::write(&timeline, out).map_err(|why| format!("{}: {why}", file.display()))?;
        written.push(file);
    }
    let output = if args.json {
        format!("{}\n", summary::json(&timeline))
    } else {
        described(&timeline, &written)
    };
    print(&output)
}

/// Returns the part that the options select.
///
/// # Errors
/// The ranks are none, or there is no time between the two that are given.
fn wanted_cut(args: &TraceArgs) -> Result<TimelineCut, String> {
    let cut = TimelineCut {
        ranks: args.ranks.as_deref().map_or(Ok(Vec::new()), parse_ranks)?,
        from: args.from.unwrap_or(0),
        to: args.to.unwrap_or(u64::MAX),
    };
    if cut.from > cut.to {
        return Err("--from is behind --to: give the earlier time with --from".to_owned());
    }
    Ok(cut)
}

/// Returns the table and the sentences beside it.
fn described(timeline: &JobTimeline, written: &[PathBuf]) -> String {
    let mut text = summary::text(timeline);
    let notes = timeline.notes.iter().cloned();
    let lines = notes
        .chain(timeline.clock_lines())
        .chain(timeline.backward_note());
    for line in lines.chain(
        written
            .iter()
            .map(|file| format!("wrote {}", file.display())),
    ) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn default_output(args: &TraceArgs) -> PathBuf {
    let mut name = args.files[0].as_os_str().to_owned();
    name.push(".pftrace.gz");
    PathBuf::from(name)
}

fn print_profile(args: &ProfileArgs) -> Result<(), String> {
    let profile = match running_job(&args.files) {
        None => profile_of(&args.files, args.unaligned)?,
        Some(number) => {
            let traces = JobTraces::of_job(&FoundJob::find(number)?)?;
            JobProfile::of(&JobTimeline::new(traces, args.unaligned)?)
        }
    };
    if let Some(file) = &args.svg {
        write_file(file, profile.svg().as_bytes())?;
    }
    print(&if args.json {
        format!("{}\n", profile.json())
    } else if args.csv {
        profile.csv()
    } else {
        profile.text()
    })
}

/// Returns the number of the running job that is meant, `Some(None)` for the only one. Returns `None` if files are meant.
fn running_job(files: &[PathBuf]) -> Option<Option<u32>> {
    match files {
        [] => Some(None),
        [name] => {
            let number = name.to_str()?.parse().ok()?;
            is_no_file(name).then_some(Some(number))
        }
        _ => None,
    }
}

/// Returns the profile of a job from the files of its ranks.
///
/// # Errors
/// A file cannot be read, or the clocks of several machines cannot be compared.
pub(crate) fn profile_of(files: &[PathBuf], unaligned: bool) -> Result<JobProfile, String> {
    let timeline = JobTimeline::new(JobTraces::read(files, KeptPart::WHOLE)?, unaligned)?;
    Ok(JobProfile::of(&timeline))
}

fn write_file(file: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(file, bytes).map_err(|why| format!("{}: {why}", file.display()))
}

/// Prints to the standard output. A reader that has gone is no failure.
fn print(text: &str) -> Result<(), String> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => Err(why.to_string()),
        _ => Ok(()),
    }
}

const TRACE_EXAMPLES: &str = "\
Examples:
  RIPSTOP_TRACE=run ripstop run -n 4 target/release/my-program
  ripstop trace run                          writes run.pftrace.gz
  ripstop trace run --html run.html --ranks 0-7 --from 1.5 --to 1.6
  ripstop trace run --svg run.svg --to 0.01";

const PROFILE_EXAMPLES: &str = "\
Examples:
  RIPSTOP_PROFILE=1 ripstop run -n 4 target/release/my-program    prints the profile at the end
  ripstop profile 4711                       of a job that runs: the job of process 4711, or Slurm's job 4711
  RIPSTOP_TRACE=run srun target/release/my-program && ripstop profile run
  ripstop profile run --json > run.json
  ripstop profile run --svg pairs.svg";
