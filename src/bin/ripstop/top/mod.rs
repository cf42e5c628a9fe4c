//! `ripstop top`: a live table of the ranks of a job.

mod rows;
mod screen;
mod table;

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use ripstop_rt::internal::view::look::JobLook;
use ripstop_rt::internal::view::report::ObservedJob;

use crate::stderr_lines::print_line;
use crate::stuck::{find::FoundJob, pause};
use rows::JobRows;
use screen::LiveScreen;

/// Show a table of the ranks of a running job, anew each second.
///
/// For each rank: its state, its processor time, how many operations ended and how many messages it sent and received in a
/// second (those of which collectives consist count), unread messages, which have come and were not received (`probe` may have
/// reserved some), and the operation that has been in flight longest, with its source line. The ranks are not asked: the command
/// reads what each of them publishes, so it also shows ranks that are stopped. It shows the ranks of this machine.
///
/// A rank writes a snapshot when it falls asleep, at most ten times in a second. A `-` stands where two snapshots are needed and
/// the rank has not written them: it has not slept in the runtime meanwhile.
///
/// The command stays with the job that it has begun with, and ends when all ranks of that job on this machine have ended. `q` or
/// Ctrl-C ends it too. If the output is not a terminal, it prints one table. The exit code is 0 after a table, 2 for a mistake in
/// the command line, or if it is not clear which job is meant, and 3 if the terminal fails.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Process id of a rank or of its launcher, or the number of a Slurm job [default: the only job of this user]
    #[arg(value_name = "PID|JOB")]
    job: Option<u32>,

    /// Print one table of all ranks, and end
    #[arg(long)]
    once: bool,

    /// Print one table as JSON, and end
    #[arg(long)]
    json: bool,
}

/// Time between two tables, and between the two looks of one table.
const PERIOD: Duration = Duration::from_secs(1);

/// Exit code for a terminal, or another output, that fails.
const FAILED: u8 = 3;

pub(crate) fn run(args: &TopArgs) -> ExitCode {
    let job = match FoundJob::find(args.job) {
        Ok(job) => job,
        Err(sentence) => crate::reject("top", &sentence),
    };
    let is_live = !args.once && !args.json && stdout().is_terminal() && stdin().is_terminal();
    let shown = if is_live {
        show_live(job)
    } else {
        print_once(&job, args.json)
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe has seen enough.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(why) => {
            print_line("ripstop top", &format!("the output failed: {why}"));
            ExitCode::from(FAILED)
        }
    }
}

fn print_once(job: &FoundJob, is_json: bool) -> io::Result<()> {
    let before = job.look();
    pause(PERIOD);
    let rows = JobRows::of(&observed(job, &before).0);
    let mut output = stdout().lock();
    if is_json {
        return writeln!(output, "{}", rows.json());
    }
    table::lines(&rows, table::TableRoom::UNBOUNDED)
        .iter()
        .try_for_each(|line| writeln!(output, "{line}"))
}

/// Shows tables until the user or the job ends, and leaves the last one on the terminal.
fn show_live(mut job: FoundJob) -> io::Result<()> {
    let screen = LiveScreen::open()?;
    screen.draw(|_| {
        vec![format!(
            "ripstop top: {}: the first table comes after a second",
            job.name()
        )]
    })?;
    let mut before = job.look();
    let mut rows = None;
    let mut is_over = false;
    while screen.wait(PERIOD)? {
        let (observed, look) = observed(&job, &before);
        // A key ends the wait early, and two looks at nearly the same time show no shares of a processor.
        if Duration::from_nanos(observed.between) < PERIOD / 2 {
            continue;
        }
        let now = JobRows::of(&observed);
        before = look;
        screen.draw(|room| table::lines(&now, room))?;
        is_over = now.is_over();
        rows = Some(now);
        if is_over {
            break;
        }
        // Ranks may start after the command. Another job, which a number or none at all may mean by now, is not shown.
        if !job.is_whole()
            && let Some(again) = job.found_again()
        {
            job = again;
        }
    }
    drop(screen);
    let mut output = stdout().lock();
    let lines = rows.map_or_else(Vec::new, |rows| {
        table::lines(&rows, table::TableRoom::UNBOUNDED)
    });
    lines
        .iter()
        .try_for_each(|line| writeln!(output, "{line}"))?;
    if is_over {
        let name = job.name();
        writeln!(
            output,
            "ripstop top: {name}: all ranks on this machine have ended"
        )?;
    }
    Ok(())
}

/// Returns what a look at the job shows, compared with the one before, and that look.
fn observed(job: &FoundJob, before: &JobLook) -> (ObservedJob, JobLook) {
    let look = job.look();
    (look.clone().observed_after(before), look)
}

const EXAMPLES: &str = "\
Examples:
  ripstop top               the only job of this user on this machine
  ripstop top 4711          the job of process 4711, or Slurm's job 4711
  ripstop top --once        one table of all ranks, also on a terminal
  ripstop top --json        one table for a script";
