//! The start of a job over hosts: all helpers first, and ranks only once every host has said that it can start its own.

use std::collections::BTreeMap;
use std::time::Duration;

use super::choice::HostPlan;
use super::frame::LauncherFrame;
use super::link::{HostLink, LinkState};
use super::set::HostSet;
use super::setup::{HostProgram, NodeSetup};
use super::{START_FAILED, VERSION};
use crate::run::job::{LaunchedJob, now, raise_descriptor_limit};
use crate::run::label::LabeledLines;
use crate::run::rank::{LaunchedRank, StdStream};
use crate::run::server::PmiServer;
use crate::run::{LaunchError, RunArgs, programs};

impl LaunchedJob {
    /// Starts all ranks on their hosts.
    pub(in crate::run) fn start_on_hosts(
        args: &RunArgs,
        plan: HostPlan,
        programs: Vec<HostProgram>,
    ) -> Result<Self, LaunchError> {
        raise_descriptor_limit(64 + 4 * plan.hosts.len() as u64)?;
        let names = programs.iter().map(|part| part.program.to_string_lossy());
        let name = programs::names(names);
        let failed =
            |why: std::io::Error| LaunchError::machine(format!("preparing the job: {why}"));
        let mut job = Self::empty(args, name, plan.size).map_err(failed)?;
        job.server = PmiServer::of_hosts(plan.size, args.keep_going.is_some());
        job.hosts.setup = Some(setup(args, &plan, programs).map_err(failed)?);
        job.take_hosts(args, plan);
        let mut first_fault = None;
        loop {
            job.start_more();
            let faults = job.hosts.links.iter().any(|link| link.fault.is_some());
            if faults && first_fault.is_none() {
                first_fault = Some(now() + GATHER);
            }
            if job.ending.is_some() {
                return Ok(job);
            }
            if job.is_settled() || first_fault.is_some_and(|end| end <= now()) {
                break;
            }
            let next = [job.next_deadline(), first_fault]
                .into_iter()
                .flatten()
                .min();
            job.turn(next.map(|next| next.saturating_duration_since(now())));
        }
        if first_fault.is_some() {
            return Err(job.report());
        }
        job.start_ranks().map_err(failed)?;
        Ok(job)
    }

    fn take_hosts(&mut self, args: &RunArgs, plan: HostPlan) {
        self.hosts.patience = args.hosts.patience();
        self.hosts.host_of = vec![0; plan.size as usize];
        for (host, planned) in (0..).zip(plan.hosts) {
            for &rank in &planned.ranks {
                self.hosts.host_of[rank as usize] = host;
            }
            self.hosts.links.push(HostLink::new(planned));
        }
        if args.label {
            let labels = (0..plan.size).map(|rank| {
                let host = self.hosts.name_of(rank).unwrap_or_default();
                let lines = || LabeledLines::new(format!("[{rank}@{host}] "));
                [lines(), lines()]
            });
            self.hosts.labels = labels.collect();
        }
    }

    /// Runs the starters of hosts, at most `AT_A_TIME` at a time.
    fn start_more(&mut self) {
        let links = self.hosts.links.iter();
        let starting = links
            .filter(|link| matches!(link.state, LinkState::Starting(_)))
            .count();
        let links = (0..).zip(&mut self.hosts.links);
        let planned =
            links.filter(|(_, link)| link.state == LinkState::Planned && link.fault.is_none());
        for (host, link) in planned.take(AT_A_TIME.saturating_sub(starting)) {
            if let Err(why) = link.start(host, &self.poller) {
                let starter = link.starter();
                link.fault = Some((START_FAILED, format!("cannot start {starter}: {why}")));
            }
        }
    }

    /// Tells a helper what it has to start.
    pub(super) fn greet(
        &mut self,
        host: u32,
        version: &str,
        identity: String,
    ) -> Result<(), String> {
        let at = host as usize;
        if !matches!(self.hosts.links[at].state, LinkState::Starting(_)) {
            return Err("its helper has sent its version twice".to_owned());
        }
        if version != VERSION {
            return Err(format!(
                "its helper has version {version:?} of ripstop, and this launcher has version {VERSION:?}: install the same \
                 version on all hosts"
            ));
        }
        let mut same = self
            .hosts
            .links
            .iter()
            .filter(|link| !identity.is_empty() && link.identity == identity);
        if let Some(same) = same.next() {
            let (one, other) = (&same.name, &self.hosts.links[at].name);
            let text = format!(
                "hosts {one} and {other} are one machine, which counts as two nodes of the job"
            );
            self.print_message(&text);
        }
        let Some(mut setup) = self.hosts.setup.clone() else {
            return Ok(());
        };
        let link = &mut self.hosts.links[at];
        link.identity = identity;
        link.state = LinkState::Checking(now());
        setup.ranks.clone_from(&link.ranks);
        setup.cpus.clone_from(&link.cpus);
        for piece in setup.encode().chunks(super::frame::PAYLOAD_MAX) {
            link.send(&LauncherFrame::Setup(piece.to_vec()));
        }
        link.send(&LauncherFrame::Check);
        Ok(())
    }

    /// Returns true if each host is ready, or has a fault.
    fn is_settled(&self) -> bool {
        let mut links = self.hosts.links.iter();
        links.all(|link| link.state == LinkState::Ready || link.fault.is_some())
    }

    fn start_ranks(&mut self) -> std::io::Result<()> {
        self.ranks
            .extend((0..self.size).map(|_| LaunchedRank::remote()));
        self.hosts.send_all(&LauncherFrame::Start);
        for link in &mut self.hosts.links {
            let lines = link.note_start();
            // A failure is ignored, as with messages of the launcher.
            let _ = self.outputs[StdStream::Err as usize].write_or_hold(&lines);
        }
        self.hosts.setup = None;
        self.start_input()?;
        self.hosts.flush(&self.poller);
        Ok(())
    }

    /// Describes why the job cannot start. Hosts with the same reason are named together.
    fn report(&self) -> LaunchError {
        let faults = self.hosts.links.iter();
        let faults = faults.filter_map(|link| Some((link.name.as_str(), link.fault.as_ref()?)));
        let code = faults.clone().map(|(_, (code, _))| *code).max();
        let sentences = by_reason(faults.map(|(name, (_, why))| (name, why.as_str())));
        LaunchError {
            code: code.unwrap_or(START_FAILED),
            ..LaunchError::machine(sentences.join("\nripstop: error: "))
        }
    }
}

impl HostSet {
    /// Describes the hosts for which the start waits, as the end of a sentence. Returns `None` if the ranks run
    /// already.
    pub(in crate::run) fn late(&self) -> Option<String> {
        self.setup.as_ref()?;
        let late = self.links.iter();
        let late = late.filter_map(|link| Some((link.name.as_str(), link.why_late()?)));
        let late: Vec<_> = late.collect();
        let late = by_reason(late.iter().map(|(name, why)| (*name, why.as_str())));
        Some(late.iter().map(|one| format!("; {one}")).collect())
    }
}

/// Returns a sentence for each reason, which names the hosts.
fn by_reason<'a>(hosts: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, why) in hosts {
        reasons.entry(masked(why, name)).or_default().push(name);
    }
    let sentences = reasons.iter().map(|(why, hosts)| match hosts.as_slice() {
        [host] => format!("host {host}: {}", why.replace("%h", host)),
        hosts => format!("hosts {}: {why}", some(hosts)),
    });
    sentences.collect()
}

/// Replaces the name of a host by `%h`, where it stands alone.
fn masked(text: &str, name: &str) -> String {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '_';
    let mut masked = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, behind) = (&rest[..at], &rest[at + name.len()..]);
        let alone = !before.ends_with(is_part) && !behind.starts_with(is_part);
        masked.push_str(before);
        masked.push_str(if alone { "%h" } else { name });
        rest = behind;
    }
    masked + rest
}

/// Returns the names of the first hosts, and how many others there are: `h3, h7 and 5 others`.
fn some(hosts: &[&str]) -> String {
    match hosts {
        [first @ .., last] if hosts.len() <= NAMED => format!("{} and {last}", first.join(", ")),
        _ => {
            let (first, rest) = hosts.split_at(NAMED - 1);
            format!("{} and {} others", first.join(", "), rest.len())
        }
    }
}

/// Returns what all hosts have in common.
fn setup(
    args: &RunArgs,
    plan: &HostPlan,
    programs: Vec<HostProgram>,
) -> std::io::Result<NodeSetup> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let pid = rustix::process::getpid().as_raw_nonzero();
    Ok(NodeSetup {
        size: plan.size,
        ranks: Vec::new(),
        cpus: Vec::new(),
        space: format!("ripstop-{pid}-{}", super::plain(&host)),
        mapping: plan.mapping.clone(),
        binding: args.bind,
        patience: args.hosts.patience(),
        directory: args.hosts.directory()?,
        programs,
        environment: args.hosts.environment(),
    })
}

/// Most starters that begin at a time. Each costs a handshake on both ends.
const AT_A_TIME: usize = 32;

/// Time to gather further failures after the first.
const GATHER: Duration = Duration::from_secs(2);

/// Hosts that a report names, of those with the same reason.
const NAMED: usize = 4;

#[cfg(test)]
mod tests {
    #[test]
    fn the_name_of_a_host_is_found_where_it_stands_alone() {
        let text = "a: cannot reach a.net, a-b nor a";
        assert_eq!(
            super::masked(text, "a"),
            "%h: cannot reach %h.net, a-b nor %h"
        );
        assert_eq!(super::masked("", "a"), "");
    }

    #[test]
    fn some_hosts_are_named_and_the_rest_counted() {
        assert_eq!(super::some(&["a", "b"]), "a and b");
        assert_eq!(super::some(&["a", "b", "c", "d"]), "a, b, c and d");
        assert_eq!(
            super::some(&["a", "b", "c", "d", "e"]),
            "a, b, c and 2 others"
        );
    }
}
