//! The launcher's end of the channel to one host: the starter's process, and frames over its standard input and output.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::choice::PlannedHost;
use super::errors::StarterErrors;
use super::frame::{FrameReader, HelperFrame, LauncherFrame, MARK, encode};
use crate::run::job::now;
use crate::run::output_writer::OutputWriter;
use crate::run::poller::{JobPoller, PollToken, is_ready};
use crate::run::signals;
use crate::run::verdict::describe_exit;

#[derive(Debug)]
pub(in crate::run) struct HostLink {
    pub(super) name: String,
    /// The ranks on this host, in ascending order.
    pub(super) ranks: Vec<u32>,
    /// As in [`PlannedHost`].
    pub(super) cpus: Vec<Vec<u32>>,
    pub(super) state: LinkState,
    /// True once its ranks may have been started.
    pub(super) had_ranks: bool,
    /// The ranks that ran when the host was lost.
    pub(super) lost: Vec<u32>,
    /// What tells this host from others.
    pub(super) identity: String,
    /// The reason why this host cannot take part, and the exit code for that.
    pub(super) fault: Option<(u8, String)>,
    command: Vec<OsString>,
    child: Option<Child>,
    into: Option<OutputWriter>,
    /// Frames that are not given to `into` yet.
    bytes: Vec<u8>,
    from: Option<OwnedFd>,
    errors: StarterErrors,
    reader: FrameReader,
    /// What the start-up files of a shell have printed before the helper's mark.
    chatter: Vec<u8>,
    is_marked: bool,
    /// Time of the last sign of the helper.
    heard: Instant,
    /// Time of the last frame to the helper.
    said: Instant,
    /// Set once the starter has closed its output: until when its last words are awaited.
    closing: Option<Instant>,
}

/// How far a host has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum LinkState {
    /// Its starter is not started yet.
    Planned,
    /// Its starter runs since then.
    Starting(Instant),
    /// Its helper has said hello, and checks since then whether it can start its ranks.
    Checking(Instant),
    /// It can.
    Ready,
    /// Its ranks were started.
    Running,
    /// Its helper has said goodbye.
    Leaving,
    /// Nothing is left of the channel.
    Closed,
}

impl HostLink {
    pub(super) fn new(host: PlannedHost) -> Self {
        Self {
            errors: StarterErrors::new(&host.name),
            name: host.name,
            ranks: host.ranks,
            cpus: host.cpus,
            state: LinkState::Planned,
            had_ranks: false,
            lost: Vec::new(),
            identity: String::new(),
            fault: None,
            command: host.command,
            child: None,
            into: None,
            bytes: Vec::new(),
            from: None,
            reader: FrameReader::default(),
            chatter: Vec::new(),
            is_marked: false,
            heard: now(),
            said: now(),
            closing: None,
        }
    }

    /// Starts the starter. The starter reads and writes pipes only, so it never takes the launcher's own input.
    pub(super) fn start(&mut self, host: u32, poller: &JobPoller) -> io::Result<()> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        signals::unblock_in(&mut command);
        let mut child = command.spawn()?;
        let (into, from, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.child = Some(child);
        self.state = LinkState::Starting(now());
        self.into = into.map(OutputWriter::new).transpose()?;
        self.from = from.map(OwnedFd::from);
        self.errors.pipe = errors.map(OwnedFd::from);
        if let Some(from) = &self.from {
            poller.watch(from, PollToken::Frames(host))?;
        }
        if let Some(errors) = &self.errors.pipe {
            poller.watch(errors, PollToken::HostErrors(host))?;
        }
        Ok(())
    }

    pub(super) fn send(&mut self, frame: &LauncherFrame) {
        if self.into.is_some() {
            encode(frame, &mut self.bytes);
        }
    }

    /// Reads once, which does not block after a wait. The error says why this is no channel to a helper.
    pub(super) fn read(&mut self, poller: &JobPoller) -> Result<(), String> {
        let Some(from) = &self.from else {
            return Ok(());
        };
        let mut bytes = [0; READ_MAX];
        match rustix::io::read(from, &mut bytes) {
            Ok(count) if count > 0 => {
                self.heard = now();
                return self.take(&bytes[..count]);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            _ => {}
        }
        poller.forget(from.as_fd());
        self.from = None;
        self.closing = Some(now() + LAST_WORDS);
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.is_marked {
            self.reader.push(bytes);
            return Ok(());
        }
        let from = self.chatter.len().saturating_sub(MARK.len());
        self.chatter.extend_from_slice(bytes);
        let windows = self.chatter[from..].windows(MARK.len());
        let at = windows.into_iter().position(|window| window == MARK);
        if let Some(at) = at {
            let at = from + at;
            self.reader.push(&self.chatter[at + MARK.len()..]);
            self.chatter.truncate(at);
            self.is_marked = true;
        } else if self.chatter.len() > CHATTER_MAX {
            return Err(format!(
                "its starter printed {} bytes, and no helper answered",
                self.chatter.len()
            ));
        }
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Option<HelperFrame>, String> {
        self.reader.next()
    }

    /// Writes what fits. An error shows as the end of the helper's frames.
    pub(super) fn flush(&mut self, poller: &JobPoller) {
        let Some(into) = &mut self.into else { return };
        if !self.bytes.is_empty() {
            self.said = now();
        }
        let _ = into.write_or_hold(&self.bytes);
        self.bytes.clear();
        into.watch_for_room(poller, PollToken::FrameRoom);
    }

    /// Writes all frames, and waits for room for them until `end`.
    pub(super) fn flush_all(&mut self, poller: &JobPoller, end: Instant) {
        self.flush(poller);
        while let Some(into) = &self.into
            && !into.is_empty()
            && into.wait_for_room(end)
        {
            self.flush(poller);
        }
    }

    /// Sends a sign of life if it is time for one.
    pub(super) fn beat(&mut self, now: Instant) {
        let is_said =
            self.into.as_ref().is_some_and(OutputWriter::is_empty) && self.bytes.is_empty();
        if is_said && self.is_marked && now >= self.said + super::BEAT {
            self.send(&LauncherFrame::Beat);
        }
    }

    /// Forgets how long the helper was silent, because this process could not listen.
    pub(super) fn pardon(&mut self) {
        self.heard = now();
    }

    /// Returns true if the helper has sent something that was not read yet. This process may have been too busy to read it.
    fn has_input(&self) -> bool {
        let from = self.from.as_ref();
        from.is_some_and(|from| is_ready(from, PollFlags::IN, Duration::ZERO))
    }

    /// Returns why the host must be given up at this time, if it must.
    pub(super) fn verdict(&mut self, now: Instant, patience: Duration) -> Option<String> {
        if let Some(end) = self.closing
            && (end <= now || self.errors.pipe.is_none() && self.ended().is_some())
        {
            return Some(self.epitaph());
        }
        match self.state {
            LinkState::Starting(since) if self.closing.is_none() && now >= since + START_MAX => {
                Some(format!(
                    "no answer within {} s{}",
                    START_MAX.as_secs(),
                    self.last_words()
                ))
            }
            LinkState::Checking(_) | LinkState::Ready | LinkState::Running | LinkState::Leaving
                if now >= self.heard + patience && !self.has_input() =>
            {
                Some(format!("gave no sign for {} s", patience.as_secs_f64()))
            }
            LinkState::Checking(since) if now >= since + START_MAX => Some(format!(
                "its helper did not say within {} s whether it can start its ranks",
                START_MAX.as_secs()
            )),
            _ => None,
        }
    }

    /// Returns the next time at which [`verdict`](Self::verdict) or [`beat`](Self::beat) may have something to do.
    pub(super) fn next_deadline(&self, patience: Duration) -> Option<Instant> {
        let beat = (self.said + super::BEAT)
            .max(now() + BEAT_LEAST)
            .min(self.heard + patience);
        let time = match self.state {
            LinkState::Planned | LinkState::Closed => return None,
            LinkState::Starting(since) => since + START_MAX,
            LinkState::Checking(since) => beat.min(since + START_MAX),
            _ => beat,
        };
        Some(self.closing.map_or(time, |closing| closing.min(time)))
    }

    /// Returns what a host that cannot start its ranks yet has still to do.
    pub(super) fn why_late(&self) -> Option<String> {
        match self.state {
            _ if self.fault.is_some() => None,
            LinkState::Planned => Some("its starter was not started yet".to_owned()),
            LinkState::Starting(_) => Some(format!(
                "{} runs, and no helper has answered yet{}",
                self.starter(),
                self.last_words()
            )),
            LinkState::Checking(_) => {
                Some("its helper has not said yet whether it can start its ranks".to_owned())
            }
            _ => None,
        }
    }

    /// How the starter ended, and what it said.
    fn epitaph(&mut self) -> String {
        let ended = self.ended();
        let how = ended.map_or_else(|| "closed its output".to_owned(), describe_exit);
        let starter = self.starter();
        let who = if self.is_marked {
            "the connection ended"
        } else {
            "no helper there"
        };
        let is_missing = ended.and_then(|ended| ended.code()) == Some(NOT_FOUND);
        let advice = if is_missing && !self.is_marked {
            "; every host must have this command under the same path"
        } else {
            ""
        };
        format!("{who}: {starter} {how}{}{advice}", self.last_words())
    }

    /// Returns how the starter has ended, once it has.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    fn last_words(&self) -> String {
        let chatter = if self.is_marked {
            &[][..]
        } else {
            &self.chatter
        };
        self.errors.last_words(chatter)
    }

    /// Takes what the starter and the helper print on standard error, and returns lines to show.
    pub(super) fn read_errors(&mut self, poller: &JobPoller) -> Vec<u8> {
        let is_helper = self.is_marked && !matches!(self.state, LinkState::Checking(_));
        self.errors.read(poller, is_helper)
    }

    /// Notes that the ranks of this host are being started. Returns lines to show of what its starter has printed before.
    pub(super) fn note_start(&mut self) -> Vec<u8> {
        self.state = LinkState::Running;
        self.had_ranks = true;
        self.errors.take_held()
    }

    /// Closes the channel, and asks a starter that still runs to end.
    pub(super) fn close(&mut self, poller: &JobPoller) {
        let fds = [self.from.as_ref(), self.errors.pipe.as_ref()];
        fds.into_iter()
            .flatten()
            .for_each(|fd| poller.forget(fd.as_fd()));
        if let Some(into) = &self.into {
            poller.forget(into.as_fd());
        }
        let is_over = matches!(self.state, LinkState::Leaving);
        (self.into, self.from, self.errors.pipe, self.closing) = (None, None, None, None);
        self.state = LinkState::Closed;
        if !is_over {
            self.end_starter();
        }
    }

    /// A helper ends because its input does. A starter whose network is lost may not notice.
    fn end_starter(&mut self) {
        if let Some(starter) = self.running_starter() {
            let _ = kill_process_group(starter, Signal::TERM); // It has just ended.
        }
    }

    fn running_starter(&mut self) -> Option<Pid> {
        let child = self.child.as_mut()?;
        let runs = child.try_wait().is_ok_and(|ended| ended.is_none());
        runs.then(|| Pid::from_child(child))
    }

    /// Closes the channel, so that the helper ends its ranks, and asks the starter to end.
    pub(super) fn ask_to_end(&mut self) {
        self.into = None;
        if self.state != LinkState::Leaving {
            self.end_starter();
        }
    }

    /// Kills the starter if it still runs at `end`. A starter of ranks is not killed, because it may be the helper itself, and a
    /// helper that was killed leaves processes of its ranks behind.
    pub(super) fn kill_starter(&mut self, end: Instant) {
        let Some(starter) = self.running_starter().filter(|_| !self.had_ranks) else {
            return;
        };
        if let Ok(process) = pidfd_open(starter, PidfdFlags::empty()) {
            let left = end.saturating_duration_since(now());
            is_ready(&process, PollFlags::IN, left); // What counts is asked next.
        }
        if self.running_starter().is_some() {
            let _ = kill_process_group(starter, Signal::KILL); // It has just ended.
            if let Some(child) = &mut self.child {
                let _ = child.wait(); // Fails only if the process was reaped elsewhere.
            }
        }
    }

    /// Ends what the helper reads, so that it ends.
    pub(super) fn hang_up(&mut self, poller: &JobPoller) {
        if let Some(into) = self.into.take() {
            poller.forget(into.as_fd());
        }
    }

    /// Returns the name of the starter's program.
    pub(super) fn starter(&self) -> String {
        self.command[0].to_string_lossy().into_owned()
    }
}

/// The exit code of a shell, and so of its starter, for a helper that is not there.
const NOT_FOUND: i32 = 127;

/// Time to start a helper on a host: more than the patience of ssh, and than a slow login.
const START_MAX: Duration = Duration::from_secs(60);

/// Time to read a starter's last words once it has closed its output.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Time between two looks at a channel that is too full for another beat.
const BEAT_LEAST: Duration = Duration::from_millis(100);

const READ_MAX: usize = 64 << 10;
const CHATTER_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn link() -> HostLink {
        HostLink::new(PlannedHost {
            name: "h1".to_owned(),
            ranks: vec![0],
            cpus: Vec::new(),
            command: vec!["true".into()],
        })
    }

    #[test]
    fn a_helper_is_known_by_its_mark_in_any_pieces_behind_any_chatter() {
        let mut bytes = b"Welcome\n\0ripstop\0\xff ".to_vec();
        let chatter = bytes.len();
        bytes.extend_from_slice(MARK);
        encode(&HelperFrame::Ready, &mut bytes);
        for step in 1..=bytes.len() {
            let mut link = link();
            for piece in bytes.chunks(step) {
                link.take(piece).unwrap();
            }
            assert_eq!(link.next(), Ok(Some(HelperFrame::Ready)), "{step}");
            assert_eq!(link.chatter, bytes[..chatter], "{step}");
        }
    }

    #[test]
    fn a_helper_that_only_beats_is_given_up() {
        let (mut link, since, patience) = (link(), now(), Duration::from_secs(10));
        link.state = LinkState::Checking(since);
        link.heard = since + START_MAX;
        assert_eq!(link.verdict(since + START_MAX - LAST_WORDS, patience), None);
        assert!(link.next_deadline(patience) <= Some(since + START_MAX));
        let why = link.verdict(since + START_MAX, patience).unwrap();
        assert!(why.contains("did not say within 60 s"), "{why}");
    }

    #[test]
    fn a_helper_whose_sign_was_not_read_yet_is_not_given_up() {
        let (reader, mut helper) = io::pipe().unwrap();
        let (mut link, patience) = (link(), Duration::from_secs(10));
        (link.state, link.from) = (LinkState::Running, Some(reader.into()));
        let late = link.heard + patience;
        let why = link.verdict(late, patience).unwrap();
        assert!(why.contains("gave no sign for 10 s"), "{why}");
        helper.write_all(b"!").unwrap();
        assert_eq!(link.verdict(late, patience), None);
    }

    #[test]
    fn frames_are_written_to_the_last_however_slowly_they_are_read() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut link = link();
        link.into = Some(OutputWriter::new(writer).unwrap());
        let input = LauncherFrame::Input(vec![b'y'; 60_000]);
        let mut expected = Vec::new();
        for _ in 0..20 {
            link.send(&input);
            encode(&input, &mut expected);
        }
        let listener = std::thread::spawn(move || {
            let mut heard = Vec::new();
            io::Read::read_to_end(&mut reader, &mut heard).unwrap();
            heard
        });
        let poller = JobPoller::new(1).unwrap();
        link.flush_all(&poller, now() + Duration::from_secs(60));
        assert!(link.into.as_ref().unwrap().is_empty());
        link.hang_up(&poller);
        assert!(listener.join().unwrap() == expected);
    }

    #[test]
    fn chatter_without_a_mark_has_an_end() {
        let mut link = link();
        let pieces = (0..1000).map(|_| link.take(&[b'y'; 100]));
        let taken = pieces.take_while(Result::is_ok).count();
        assert_eq!(taken, CHATTER_MAX / 100);
    }
}
