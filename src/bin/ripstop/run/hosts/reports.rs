//! Reports about ranks on several hosts that wait in vain. When the launcher asks, each helper looks at the ranks of its host,
//! and answers with what its last two looks have shown. A host that does not answer in time is named, and not waited for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ripstop_rt::internal::view::machine_nanos;
use ripstop_rt::internal::view::report::{ObservedJob, ObservedRank, ProcessState};

use super::frame::LauncherFrame;
use super::link::{HostLink, LinkState};
use super::observed;
use crate::run::job::LaunchedJob;
use crate::run::verdict::describe_exit;

/// The answers of all hosts to one question.
#[derive(Debug)]
pub(in crate::run) struct HostLook {
    number: u32,
    /// Time after which a host is silent.
    pub(in crate::run) until: Instant,
    /// True if a report is printed whatever it says.
    is_due: bool,
    /// The answers by host, each of which may not have arrived as a whole.
    answers: BTreeMap<u32, HostAnswer>,
}

/// The answer of one host.
#[derive(Debug, Default)]
struct HostAnswer {
    bytes: Vec<u8>,
    job: Option<ObservedJob>,
}

/// Time after which a host is silent.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Number of a question whose answers are not read: it makes the helpers look, so that the next look has one to compare with.
const UNREAD: u32 = 0;

impl LaunchedJob {
    /// Makes all hosts look at their ranks.
    pub(in crate::run) fn prepare_hosts(&mut self) {
        self.hosts.send_all(&LauncherFrame::Look(UNREAD));
    }

    /// Asks all hosts what their ranks wait for.
    pub(in crate::run) fn ask_hosts(&mut self, now: Instant, is_due: bool) {
        self.hosts.looks = self.hosts.looks.wrapping_add(1).max(UNREAD + 1);
        let number = self.hosts.looks;
        let asked = (0..).zip(&self.hosts.links);
        let asked = asked.filter(|(_, link)| link.state == LinkState::Running);
        let answers = asked.map(|(host, _)| (host, HostAnswer::default()));
        self.hosts.look = Some(HostLook {
            number,
            until: now + ANSWER_MAX,
            is_due,
            answers: answers.collect(),
        });
        self.hosts.send_all(&LauncherFrame::Look(number));
    }

    /// Handles a piece of a host's answer. The error says why the helper is not to be believed.
    pub(super) fn take_answer(
        &mut self,
        host: u32,
        number: u32,
        is_last: bool,
        piece: &[u8],
    ) -> Result<(), String> {
        let ranks = &self.hosts.links[host as usize].ranks;
        let look = self.hosts.look.as_mut();
        let answer = look
            .filter(|look| look.number == number)
            .and_then(|look| look.answers.get_mut(&host))
            .filter(|answer| answer.job.is_none());
        let Some(answer) = answer else {
            return Ok(()); // The answer comes too late.
        };
        if answer.bytes.len() + piece.len() > (ranks.len() + 1) * observed::RANK_MAX {
            return Err("its helper sent more about its ranks than there can be".to_owned());
        }
        answer.bytes.extend_from_slice(piece);
        if is_last {
            let job = observed::read(&std::mem::take(&mut answer.bytes));
            let is_there = |rank: &ObservedRank| ranks.contains(&rank.rank);
            let job = job.filter(|job| job.ranks.iter().all(is_there));
            answer.job = Some(job.ok_or("its helper sent a report that makes no sense")?);
        }
        Ok(())
    }

    /// Returns what the ranks of all hosts wait for, once all hosts have answered or the time for that is over, and whether a
    /// report is due.
    pub(in crate::run) fn take_host_look(&mut self, now: Instant) -> Option<(ObservedJob, bool)> {
        let is_over = |look: &mut HostLook| {
            look.until <= now || look.answers.values().all(|answer| answer.job.is_some())
        };
        let mut look = self.hosts.look.take_if(is_over)?;
        let mut job = ObservedJob {
            name: format!("job of process {}", std::process::id()),
            size: self.size,
            now: machine_nanos(),
            between: u64::MAX,
            knows_all: true,
            ranks: Vec::new(),
        };
        for (host, link) in (0..).zip(&self.hosts.links) {
            let answer = look.answers.remove(&host).and_then(|answer| answer.job);
            match answer {
                Some(answer) => job.add_node(&link.name, answer),
                None => {
                    let ranks = link.ranks.iter();
                    job.ranks.extend(ranks.map(|rank| self.unseen(*rank, link)));
                }
            }
        }
        Some((job, look.is_due))
    }

    /// Returns what is known of a rank whose host is silent or lost.
    fn unseen(&self, number: u32, link: &HostLink) -> ObservedRank {
        let rank = self.ranks.get(number as usize);
        let host = &link.name;
        let ended = rank.and_then(|rank| rank.status).map(|status| {
            // A lost rank has the status of one that was killed, because its own is not known.
            let how = if link.lost.contains(&number) {
                "was lost with its host".to_owned()
            } else {
                describe_exit(status)
            };
            ProcessState::Ended { how, ago: None }
        });
        let why = match link.state {
            LinkState::Closed if !link.lost.is_empty() => format!("its host {host} is lost"),
            _ => format!(
                "its host {host} gave no answer within {} s",
                ANSWER_MAX.as_secs()
            ),
        };
        ObservedRank {
            rank: number,
            node: host.clone(),
            pid: rank.map_or(0, |rank| rank.pid),
            process: ended.unwrap_or_else(|| ProcessState::Alive {
                percent: 0,
                sleeps_in: String::new(),
                is_running: false,
            }),
            view: Err(why),
            before: None,
        }
    }
}
