//! A job over hosts while it runs: frames of the helpers, hosts that are lost, and the end.

use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use ripstop_rt::boot::wire::WireLine;
use ripstop_rt::internal::inquest::RankEnd;
use ripstop_rt::internal::report::FailureReport;

use super::frame::{self, HelperFrame, LauncherFrame, PmiPairs};
use super::link::LinkState;
use super::{START_FAILED, output_window};
use crate::run::job::{GRACE, LaunchedJob, now};
use crate::run::rank::StdStream;
use crate::run::server::{BYTES_MAX, printable};
use crate::run::verdict::{self, FirstFailure};

impl LaunchedJob {
    pub(in crate::run) fn handle_frames(&mut self, host: u32) {
        let at = host as usize;
        let mut outcome = self.hosts.links[at].read(&self.poller);
        while outcome.is_ok() {
            outcome = match self.hosts.links[at].next() {
                Ok(Some(frame)) => self.handle_frame(host, frame),
                Ok(None) => break,
                Err(why) => Err(format!("its helper sent {why}")),
            };
        }
        if let Err(why) = outcome {
            self.lose(host, START_FAILED, why);
        }
        self.judge();
    }

    /// Handles a frame. The error says why the helper is not to be believed.
    fn handle_frame(&mut self, host: u32, frame: HelperFrame) -> Result<(), String> {
        let state = self.hosts.links[host as usize].state;
        if let Some(rank) = rank_of(&frame) {
            let is_there = self.hosts.host_of.get(rank as usize) == Some(&host);
            if state != LinkState::Running || !is_there || self.ranks.len() <= rank as usize {
                return Err(format!(
                    "its helper speaks of rank {rank}, which does not run there"
                ));
            }
        }
        match frame {
            HelperFrame::Beat => {}
            HelperFrame::Hello { version, identity } => {
                return self.greet(host, &version, identity);
            }
            HelperFrame::Ready if matches!(state, LinkState::Checking(_)) => {
                self.hosts.links[host as usize].state = LinkState::Ready;
            }
            HelperFrame::Ready => return Err("its helper is ready without a question".to_owned()),
            HelperFrame::Refused { code, why } => {
                let code = Some(code).filter(|code| REFUSALS.contains(code));
                let why = printable(why.as_bytes());
                self.lose(host, code.unwrap_or(START_FAILED), why);
            }
            HelperFrame::Started { rank, pid } => self.ranks[rank as usize].pid = pid,
            HelperFrame::Output { rank, which, bytes } => {
                return self.take_output(rank, which, &bytes);
            }
            HelperFrame::Ended { rank, status } => return self.end_remote(rank, status),
            HelperFrame::Line { rank, line } => return self.handle_remote_line(rank, &line),
            HelperFrame::Garbled { rank, why } => {
                let why = printable(why.as_bytes());
                self.fail(FirstFailure::Garbled { rank, why });
            }
            HelperFrame::Left { rank, how } => self.leave(rank, &printable(how.as_bytes())),
            HelperFrame::Pairs(pairs) => {
                let length = |(name, value): &(String, String)| frame::pair_length(name, value);
                self.hosts.pair_bytes += pairs.iter().map(length).sum::<usize>();
                if self.hosts.pair_bytes > BYTES_MAX {
                    return Err("its helper sent more values than there is room for".to_owned());
                }
                self.hosts.pairs.entry(host).or_default().extend(pairs);
            }
            HelperFrame::Fence(ranks) => return self.enter_fence(host, &ranks),
            HelperFrame::InputCredit(bytes) => self.credit_input(bytes),
            HelperFrame::InputShut => self.stop_input(),
            HelperFrame::Bye => return self.part(host),
            HelperFrame::Observed {
                number,
                is_last,
                bytes,
            } => return self.take_answer(host, number, is_last, &bytes),
        }
        Ok(())
    }

    fn enter_fence(&mut self, host: u32, ranks: &[u32]) -> Result<(), String> {
        let is_there = |rank: &u32| self.hosts.host_of.get(*rank as usize) == Some(&host);
        if !ranks.iter().all(is_there) {
            return Err("its helper speaks of ranks of other hosts".to_owned());
        }
        let pairs = self.hosts.pairs.remove(&host).unwrap_or_default();
        let effects = self.server.enter_together(ranks, pairs);
        let effects = effects.map_err(|why| format!("its helper sent {why}"))?;
        self.apply(effects);
        Ok(())
    }

    /// Lets the ranks of all hosts go on, with the pairs of all.
    pub(in crate::run) fn release_hosts(&mut self, pairs: PmiPairs) {
        for piece in frame::pieces(pairs) {
            self.hosts.send_all(&LauncherFrame::Pairs(piece));
        }
        self.hosts.send_all(&LauncherFrame::Release);
    }

    fn handle_remote_line(&mut self, rank: u32, line: &[u8]) -> Result<(), String> {
        let parsed =
            WireLine::parse(line).map_err(|why| format!("its helper sent a line, {why}"))?;
        let is_known = ["init", "finalize", "abort"].contains(&parsed.command());
        if !is_known && FailureReport::parse(parsed).is_none() {
            return Err("its helper sent a line that it should have answered".to_owned());
        }
        let effects = self.server.handle_line(rank, line);
        self.apply(effects);
        Ok(())
    }

    fn take_output(&mut self, rank: u32, which: StdStream, bytes: &[u8]) -> Result<(), String> {
        let owed = self.hosts.owed.entry((rank, which as u8)).or_default();
        *owed += bytes.len();
        if *owed > output_window(self.size) {
            return Err("its helper sent more output than it may".to_owned());
        }
        let mouth = &mut self.outputs[which as usize];
        let written = match self.hosts.labels.get_mut(rank as usize) {
            Some(lines) => lines[which as usize].write(bytes, mouth),
            None => mouth.write_or_hold(bytes),
        };
        if let Err(why) = written {
            self.fail(FirstFailure::output_failed(&why));
        }
        Ok(())
    }

    fn end_remote(&mut self, rank: u32, status: u32) -> Result<(), String> {
        let of_rank = &mut self.ranks[rank as usize];
        if of_rank.status.is_some() {
            return Err(format!("rank {rank} has ended twice"));
        }
        let status = ExitStatus::from_raw(i32::try_from(status & 0xffff).unwrap_or(0));
        of_rank.status = Some(status);
        let is_member = self.server.is_member(rank);
        self.inquest.end(rank, verdict::end(status, is_member));
        self.leave(rank, &verdict::describe_exit(status));
        Ok(())
    }

    /// Handles that a helper has said goodbye.
    fn part(&mut self, host: u32) -> Result<(), String> {
        let ranks = &self.hosts.links[host as usize].ranks;
        let running = |rank: &u32| {
            let rank = self.ranks.get(*rank as usize);
            rank.is_some_and(|rank| rank.status.is_none())
        };
        if let Some(rank) = ranks.iter().copied().find(running) {
            return Err(format!("its helper left before rank {rank} had ended"));
        }
        let link = &mut self.hosts.links[host as usize];
        let may_leave = matches!(link.state, LinkState::Running | LinkState::Leaving);
        if link.state == LinkState::Closed {
            return Ok(());
        }
        if !may_leave && !self.hosts.finishing {
            return Err("its helper left before it was asked to".to_owned());
        }
        link.state = LinkState::Leaving;
        link.hang_up(&self.poller);
        Ok(())
    }

    /// Prints what a starter, or a helper, has written to standard error.
    pub(in crate::run) fn handle_host_errors(&mut self, host: u32) {
        let lines = self.hosts.links[host as usize].read_errors(&self.poller);
        let _ = self.outputs[StdStream::Err as usize].write_or_hold(&lines); // As with messages of the launcher.
    }

    /// Gives up a host. While the job starts, that is for the report of all such hosts; later, it is a failure of its ranks.
    pub(super) fn lose(&mut self, host: u32, code: u8, why: String) {
        let link = &mut self.hosts.links[host as usize];
        let (state, name) = (link.state, link.name.clone());
        if state == LinkState::Closed {
            return;
        }
        link.close(&self.poller);
        if state == LinkState::Leaving {
            return;
        }
        if self.ranks.is_empty() {
            link.fault = Some((code, why));
            return;
        }
        let is_running = |rank: &u32| self.ranks[*rank as usize].status.is_none();
        let ranks: Vec<u32> = link.ranks.iter().copied().filter(is_running).collect();
        if ranks.is_empty() {
            // How its ranks ended is known, and was or will be judged.
            let text = format!("host {name} is lost after its ranks had ended: {why}");
            return self.print_message(&text);
        }
        link.lost.clone_from(&ranks);
        for &rank in &ranks {
            self.ranks[rank as usize].status = Some(ExitStatus::from_raw(libc::SIGKILL));
        }
        let lost = FirstFailure::HostLost {
            host: name,
            ranks: ranks.clone(),
            why,
            code,
        };
        if self.ending.is_some() {
            self.print_message(&lost.sentence(None));
        }
        self.fail(lost);
        for rank in ranks {
            self.inquest.end(rank, RankEnd::Killed);
            let followers = self.inquest.mark_reported(rank);
            self.followers.extend(followers);
            self.leave(rank, "was lost with its host");
        }
    }

    pub(in crate::run) fn handle_host_time(&mut self, now: Instant) {
        for host in 0..self.hosts.links.len() {
            let patience = self.hosts.patience;
            let link = &mut self.hosts.links[host];
            link.beat(now);
            if let Some(why) = link.verdict(now, patience) {
                self.lose(u32::try_from(host).unwrap_or(0), START_FAILED, why);
            }
        }
    }

    /// Takes the output that the hosts still have, and waits until all helpers have left: as long as the job may run, and for
    /// a short time if it was asked to end.
    pub(in crate::run) fn finish_hosts(&mut self) {
        if self.hosts.is_empty() {
            return;
        }
        self.hosts.finishing = true;
        for link in &mut self.hosts.links {
            link.send(&LauncherFrame::Finish);
        }
        let (patience, interrupts) = (now() + GRACE, self.interrupts);
        while self.hosts.is_busy() && self.interrupts == interrupts {
            let time = now();
            if self.ending.is_some() && patience <= time {
                break;
            }
            let ending = self.ending.as_ref().map(|_| patience);
            let next = [self.next_deadline(), ending].into_iter().flatten().min();
            self.turn(next.map(|next| next.saturating_duration_since(time)));
        }
        for link in &mut self.hosts.links {
            link.close(&self.poller);
        }
        let labels = self.hosts.labels.iter_mut();
        for (lines, which) in labels.flat_map(|lines| lines.iter_mut().zip([0, 1])) {
            let _ = lines.end(&mut self.outputs[which]); // A failure of the output was told before.
        }
    }
}

/// The exit codes with which a helper may refuse to start ranks. With another code, a failed job could look like a success.
const REFUSALS: RangeInclusive<u8> = START_FAILED..=127;

/// Returns the rank that a frame is about.
fn rank_of(frame: &HelperFrame) -> Option<u32> {
    match frame {
        HelperFrame::Started { rank, .. }
        | HelperFrame::Output { rank, .. }
        | HelperFrame::Ended { rank, .. }
        | HelperFrame::Line { rank, .. }
        | HelperFrame::Garbled { rank, .. }
        | HelperFrame::Left { rank, .. } => Some(*rank),
        _ => None,
    }
}
