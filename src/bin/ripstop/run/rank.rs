//! One rank: its process, its PMI connection and, if labeled or relayed, its output.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::thread::CpuSet;

use ripstop_rt::boot::wire;

use super::label::LabeledLines;
use super::output_writer::OutputWriter;
use super::poller::is_ready;
use super::program::LaunchProgram;
use super::signals::ChildSetup;

/// A started process. It is not reaped before [`kill_and_reap`](Self::kill_and_reap), so its process group keeps its number.
#[derive(Debug)]
pub(super) struct LaunchedRank {
    /// The process, unless it is on another host.
    process: Option<Child>,
    /// Number of its process; 0 on another host that has not told it yet.
    pub(super) pid: u32,
    socket: Option<UnixStream>,
    request: Vec<u8>,
    output: [Option<RankOutput>; 2],
    /// Exit status of the rank, once it has ended.
    pub(super) status: Option<ExitStatus>,
}

/// Data that all ranks of a job share.
#[derive(Debug)]
pub(super) struct JobSetup<'a> {
    pub(super) program: &'a LaunchProgram,
    pub(super) ranks: u32,
    pub(super) label: bool,
    /// Set in a helper, which relays input and output.
    pub(super) relayed: Option<&'a RelayedRanks>,
}

/// What the ranks of one host have in common.
#[derive(Debug)]
pub(super) struct RelayedRanks {
    /// Number of ranks on this host.
    pub(super) locals: u32,
    /// All variables of a rank but those about its place in the job.
    pub(super) environment: Vec<(OsString, OsString)>,
}

/// The result of a read from a rank's connection.
pub(super) enum PmiRead {
    /// Lines, each without its newline.
    Lines(Vec<Vec<u8>>),
    /// A line that is longer than allowed.
    LineTooLong,
    /// The connection was closed.
    Closed,
}

/// The outputs of a rank: standard output, standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StdStream {
    Out = 0,
    Err = 1,
}

#[derive(Debug)]
struct RankOutput {
    pipe: OwnedFd,
    lines: LabeledLines,
}

impl LaunchedRank {
    pub(super) fn start(setup: &JobSetup<'_>, rank: u32, cpus: Option<CpuSet>) -> io::Result<Self> {
        Self::start_relayed(setup, rank, rank, cpus)
    }

    /// Returns a rank on another host, of which only its fate is known here.
    pub(super) fn remote() -> Self {
        Self {
            process: None,
            pid: 0,
            socket: None,
            request: Vec::new(),
            output: [None, None],
            status: None,
        }
    }

    /// Starts a rank that has the number `local` on its host.
    pub(super) fn start_relayed(
        setup: &JobSetup<'_>,
        rank: u32,
        local: u32,
        cpus: Option<CpuSet>,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = command(setup, rank, local, &theirs)?;
        let is_terminal = io::IsTerminal::is_terminal(&io::stdout())
            || io::IsTerminal::is_terminal(&io::stderr());
        ChildSetup {
            socket: theirs.into(),
            cpus,
            at_terminal: is_terminal && !setup.label && setup.relayed.is_none(),
        }
        .prepare(&mut command);
        let mut child = command.spawn()?;
        let output = [
            RankOutput::new(rank, child.stdout.take().map(OwnedFd::from))?,
            RankOutput::new(rank, child.stderr.take().map(OwnedFd::from))?,
        ];
        Ok(Self {
            pid: child.id(),
            process: Some(child),
            socket: Some(ours),
            request: Vec::new(),
            output,
            status: None,
        })
    }

    /// Returns the rank's input, if it is relayed.
    pub(super) fn take_input(&mut self) -> Option<ChildStdin> {
        self.process.as_mut()?.stdin.take()
    }

    /// Returns the connection, to watch it for requests.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn output(&self, which: StdStream) -> Option<BorrowedFd<'_>> {
        self.output[which as usize]
            .as_ref()
            .map(|output| output.pipe.as_fd())
    }

    /// Reads the requests that have arrived on the connection.
    pub(super) fn receive(&mut self) -> PmiRead {
        let Some(socket) = &mut self.socket else {
            return PmiRead::Closed;
        };
        let mut bytes = [0; REQUEST_MAX];
        match socket.read(&mut bytes) {
            Ok(0) => return PmiRead::Closed,
            Ok(count) => self.request.extend_from_slice(&bytes[..count]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => return PmiRead::Closed,
        }
        let whole = self
            .request
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines = self.request.drain(..whole).collect::<Vec<u8>>();
        if self.request.len() >= REQUEST_MAX {
            self.request.clear();
            return PmiRead::LineTooLong;
        }
        PmiRead::Lines(
            lines
                .split_inclusive(|&byte| byte == b'\n')
                .map(|line| line[..line.len() - 1].to_vec())
                .collect(),
        )
    }

    /// Sends an answer. Returns false if the rank has left so many answers unread that this one does not fit.
    pub(super) fn answer(&self, line: &str) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        match send(
            socket,
            line.as_bytes(),
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(sent) => sent == line.len(),
            Err(Errno::AGAIN) => false,
            Err(_) => true, // The rank has hung up, which the next read notices.
        }
    }

    pub(super) fn close_connection(&mut self) {
        self.socket = None;
    }

    /// Copies the available output, under the rank's label. Returns `Ok(false)` at its end.
    pub(super) fn copy_output(
        &mut self,
        which: StdStream,
        into: &mut dyn io::Write,
    ) -> io::Result<bool> {
        let Some(output) = &mut self.output[which as usize] else {
            return Ok(false);
        };
        let more = output.copy(into)?.is_some();
        if !more {
            self.output[which as usize] = None;
        }
        Ok(more)
    }

    /// Reads output once, at most `most` bytes, without a label. Returns `None` at its end.
    pub(super) fn read_output(&mut self, which: StdStream, most: usize) -> Option<Vec<u8>> {
        let output = self.output[which as usize].as_ref()?;
        let mut bytes = vec![0; most.min(READ_MAX)];
        match rustix::io::read(&output.pipe, &mut bytes) {
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                Some(bytes)
            }
            Err(Errno::AGAIN | Errno::INTR) => Some(Vec::new()),
            _ => {
                self.output[which as usize] = None;
                None
            }
        }
    }

    /// Returns the number of bytes that wait in the pipe.
    pub(super) fn held_output(&self, which: StdStream) -> usize {
        let output = self.output[which as usize].as_ref();
        output.map_or(0, RankOutput::held)
    }

    /// Copies all output that is available now.
    pub(super) fn drain_output(&mut self, into: &mut [OutputWriter; 2]) -> io::Result<()> {
        let mut outcome = Ok(());
        for (output, mouth) in self.output.iter_mut().zip(into) {
            if let Some(output) = output {
                let drained = output.drain(mouth);
                outcome = outcome.and(drained);
            }
        }
        outcome
    }

    /// Copies all available output and closes the pipe, which a process that the rank left behind may hold open.
    pub(super) fn close_output(&mut self, into: &mut [OutputWriter; 2]) -> io::Result<()> {
        let mut outcome = self.drain_output(into);
        for (output, mouth) in self.output.iter_mut().zip(into) {
            if let Some(mut output) = output.take() {
                let ended = output.lines.end(mouth);
                outcome = outcome.and(ended);
            }
        }
        outcome
    }

    /// Returns true if the process has ended since the last call; `status` is then set.
    fn has_ended(&mut self) -> bool {
        if self.status.is_some() {
            return false;
        }
        let Some(process) = &self.process else {
            return false;
        };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Ok(Some(end)) = waitid(WaitId::Pid(Pid::from_child(process)), look) else {
            return false;
        };
        let raw = match (end.exit_status(), end.terminating_signal()) {
            (Some(code), _) => (code & 0xff) << 8,
            (None, Some(signal)) => signal | if end.dumped() { 0x80 } else { 0 },
            (None, None) => return false,
        };
        self.status = Some(ExitStatus::from_raw(raw));
        true
    }

    /// Sends a signal to the rank and all processes that it has started.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            let _ = kill_process_group(Pid::from_child(process), signal); // No process is left; then there is nothing to do.
        }
    }

    /// Kills the remaining processes of the rank and reaps it. The number of its process group may belong to another program
    /// afterwards, so the rank forgets it.
    pub(super) fn kill_and_reap(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut process) = self.process.take() {
            let _ = process.wait(); // Fails only if the process was reaped elsewhere.
        }
    }
}

impl RankOutput {
    fn new(rank: u32, pipe: Option<OwnedFd>) -> io::Result<Option<Self>> {
        let Some(pipe) = pipe else { return Ok(None) };
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Some(Self {
            pipe,
            lines: LabeledLines::new(format!("[{rank}] ")),
        }))
    }

    /// Copies once. Returns the number of bytes, or `None` at the end.
    fn copy(&mut self, into: &mut dyn io::Write) -> io::Result<Option<usize>> {
        let mut bytes = [0; 16 << 10];
        match rustix::io::read(&self.pipe, &mut bytes) {
            Ok(0) => self.lines.end(into).map(|()| None),
            Ok(count) => self
                .lines
                .write(&bytes[..count], into)
                .map(|()| Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(0)),
            Err(_) => self.lines.end(into).map(|()| None),
        }
    }

    /// Copies what the pipe holds now, and little of what comes meanwhile: a process that a rank left behind may write for
    /// ever.
    fn drain(&mut self, into: &mut dyn io::Write) -> io::Result<()> {
        let mut left = self.held();
        while left > 0 && self.is_ready() {
            let Some(copied) = self.copy(into)? else {
                break;
            };
            left = left.saturating_sub(copied);
        }
        Ok(())
    }

    /// Returns the number of bytes that wait in the pipe.
    fn held(&self) -> usize {
        ioctl_fionread(&self.pipe).map_or(0, |held| usize::try_from(held).unwrap_or(0))
    }

    fn is_ready(&self) -> bool {
        is_ready(&self.pipe, PollFlags::IN, Duration::ZERO)
    }
}

/// Returns the numbers of the ranks that have ended since the last call. Ranks that were killed come first, because they are more
/// likely the cause of the other ends.
pub(super) fn take_ended(ranks: &mut [LaunchedRank]) -> Vec<u32> {
    let ended = (0..).zip(ranks.iter_mut());
    let mut ended: Vec<u32> = ended
        .filter_map(|(number, rank)| rank.has_ended().then_some(number))
        .collect();
    ended.sort_by_key(|&number| {
        let status = ranks[number as usize].status;
        status.is_some_and(|status| status.code().is_some())
    });
    ended
}

fn command(
    setup: &JobSetup<'_>,
    rank: u32,
    local: u32,
    socket: &UnixStream,
) -> io::Result<Command> {
    let mut command = Command::new(&setup.program.path);
    command.args(&setup.program.arguments).process_group(0);
    if let Some(relayed) = setup.relayed {
        let all = relayed.environment.iter();
        command
            .env_clear()
            .envs(all.map(|(name, value)| (name, value)));
    } else {
        let own = std::env::vars_os();
        for (name, _) in own.filter(|(name, _)| is_foreign(&name.to_string_lossy())) {
            command.env_remove(name);
        }
    }
    if let Some(trace) = &setup.program.trace {
        command.env("RIPSTOP_TRACE", trace);
    }
    let (ranks, fd) = (setup.ranks.to_string(), socket.as_raw_fd());
    command
        .env("PMI_FD", fd.to_string())
        .env("PMI_RANK", rank.to_string())
        .env("PMI_SIZE", &ranks);
    let locals = setup.relayed.map_or(setup.ranks, |relayed| relayed.locals);
    command
        .env("MPI_LOCALRANKID", local.to_string())
        .env("MPI_LOCALNRANKS", locals.to_string())
        .env("RIPSTOP_LAUNCHER", wire::connection(fd, socket)?);
    // A terminal stops a process of another group that reads from it, so this process reads for the rank.
    let types = io::IsTerminal::is_terminal(&io::stdin());
    command.stdin(match setup.relayed {
        _ if rank != 0 => Stdio::null(),
        Some(_) => Stdio::piped(),
        None if types => Stdio::piped(),
        None => Stdio::inherit(),
    });
    if setup.label || setup.relayed.is_some() {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    Ok(command)
}

/// Returns true for a variable in which another launcher, which started this process, describes its own job.
fn is_foreign(name: &str) -> bool {
    ["PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Longest request, in bytes; longer than any request of PMI-1.
const REQUEST_MAX: usize = 8 << 10;

/// Most output that is relayed at a time, in bytes.
const READ_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use rustix::io::write;
    use rustix::pipe::pipe;

    use super::*;

    /// A writer that refills the pipe after each copy, up to a number of times that no test should reach.
    struct Refills {
        pipe: OwnedFd,
        copied: usize,
    }

    impl io::Write for Refills {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.copied += 1;
            if self.copied < 1000 {
                write(&self.pipe, b"y\n")?;
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_rank_that_was_reaped_is_not_signaled_again() {
        let child = Command::new("true").process_group(0).spawn().unwrap();
        let mut rank = LaunchedRank::remote();
        rank.process = Some(child);
        rank.kill_and_reap();
        assert!(rank.process.is_none());
    }

    #[test]
    fn a_pipe_that_never_runs_dry_is_drained_of_what_it_held() {
        let (reader, writer) = pipe().unwrap();
        write(&writer, b"last words\n").unwrap();
        let mut output = RankOutput::new(3, Some(reader)).unwrap().unwrap();
        let mut refills = Refills {
            pipe: writer,
            copied: 0,
        };
        output.drain(&mut refills).unwrap();
        assert!(
            (1..10).contains(&refills.copied),
            "{} times",
            refills.copied
        );
    }
}
