//! The options about hosts, and what follows from them: which ranks run where, and what starts a helper there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::list::{self, ListedHost};
use super::placement::{self, HostPlacement, PlacementWish};
use super::rankfile::{self, RankFile};
use super::setup::is_passed_on;
use super::starter::{self, HelperStarter};
use super::{RANKS_MAX, allocation};
use crate::run::program::first_in;
use crate::run::{LaunchError, message};

/// Options for jobs on several hosts.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Hosts")]
pub(in crate::run) struct HostArgs {
    /// Hosts to run on, with places for ranks: `a:2,b,n[0-3]:4`
    #[arg(long, value_name = "LIST", group = "host_list")]
    hosts: Option<String>,

    /// File with a host in each line: `a:2`, `a slots=2`, `me@a`, `n[0-3]:4`
    #[arg(long, value_name = "FILE", group = "host_list")]
    hostfile: Option<PathBuf>,

    /// Run on the hosts that Slurm, PBS or LSF allocated to this job
    #[arg(long, group = "host_list")]
    allocation: bool,

    /// File with a line for each rank: `rank 0=a`, `rank 1=me@b 0-3,8` with CPUs, `rank 2-5=c`
    #[arg(long, value_name = "FILE", group = "host_list", conflicts_with_all = ["per_host", "oversubscribe"])]
    rankfile: Option<PathBuf>,

    /// Number of ranks on each host, instead of the places in the list
    #[arg(long, value_name = "K", requires = "host_list",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    per_host: Option<u32>,

    /// Allow more ranks than there are places: placing starts over at the first host
    #[arg(long, requires = "host_list")]
    oversubscribe: bool,

    /// What starts a helper on a host: ssh, srun, blaunch, pbs_tmrsh, or a command with %h for the host [default: that of the
    /// allocation, or ssh]. RIPSTOP_START_WITH sets it too
    #[arg(long, value_name = "COMMAND", requires = "host_list")]
    start_with: Option<String>,

    /// Directory of the ranks on all hosts [default: this one]
    #[arg(long, value_name = "DIR", requires = "host_list")]
    wdir: Option<PathBuf>,

    /// Give the ranks this variable too: all have the launcher's, but for those of a host or a login
    #[arg(long, value_name = "NAME[=VALUE]", requires = "host_list")]
    env: Vec<OsString>,

    /// Give the ranks no variable of the launcher's but PATH and those of --env. Each host adds its own: HOSTNAME, HOST, TMPDIR,
    /// KRB5CCNAME and XDG_RUNTIME_DIR
    #[arg(long, requires = "host_list")]
    no_env: bool,

    /// End the job if a host gives no sign for this many seconds
    #[arg(long, value_name = "SECONDS", requires = "host_list", default_value = "10", value_parser = crate::run::seconds)]
    host_timeout: Duration,

    /// Say where each rank would run and how its host would be reached, and run nothing
    #[arg(long, requires = "host_list")]
    print_hosts: bool,
}

/// Where the ranks of a job run.
#[derive(Debug)]
pub(in crate::run) struct HostPlan {
    pub(in crate::run) size: u32,
    /// The value of `PMI_process_mapping`.
    pub(in crate::run) mapping: String,
    pub(in crate::run) hosts: Vec<PlannedHost>,
}

/// One host of a job.
#[derive(Debug)]
pub(in crate::run) struct PlannedHost {
    pub(in crate::run) name: String,
    pub(in crate::run) ranks: Vec<u32>,
    /// The CPUs of each of `ranks`; none for a rank whose line in the rank file names none. Empty if that is so of all.
    pub(in crate::run) cpus: Vec<Vec<u32>>,
    /// The words that start a helper there. The first is a program.
    pub(in crate::run) command: Vec<OsString>,
}

impl HostArgs {
    /// Returns the plan for `ranks` ranks, or `None` if the job runs on this machine and no host was named.
    pub(in crate::run) fn plan(&self, ranks: Option<u32>) -> Result<Option<HostPlan>, LaunchError> {
        if let Some(path) = &self.rankfile {
            return self.plan_of_file(path, ranks).map(Some);
        }
        let Some((hosts, usual)) = self.list().map_err(LaunchError::usage)? else {
            return Ok(None);
        };
        let starter = self.starter().map_err(LaunchError::usage)?.unwrap_or(usual);
        let wish = PlacementWish {
            ranks,
            per_host: self.per_host,
            oversubscribe: self.oversubscribe,
        };
        let placement = placement::place(&hosts, wish).map_err(LaunchError::usage)?;
        self.plan_of_hosts(&hosts, &starter, placement).map(Some)
    }

    /// Returns the plan that a rank file describes. If there is a number of `ranks` beside it, both must agree.
    fn plan_of_file(&self, path: &Path, ranks: Option<u32>) -> Result<HostPlan, LaunchError> {
        let starter = self.starter().map_err(LaunchError::usage)?;
        let placed = read(path).and_then(|bytes| {
            let file = rankfile::parse(&bytes)?;
            let placement = placement::place_as(&file)?;
            match ranks.filter(|ranks| *ranks != placement.size) {
                None => Ok((file, placement)),
                Some(ranks) => Err(format!(
                    "it places {} ranks, and -n says {ranks}: leave -n out, or place as many",
                    placement.size
                )),
            }
        });
        let placed = placed.map_err(|why| format!("--rankfile {}: {why}", path.display()));
        let (file, placement) = placed.map_err(LaunchError::usage)?;
        let starter = starter.unwrap_or(HelperStarter::Ssh);
        let mut plan = self.plan_of_hosts(&file.hosts, &starter, placement)?;
        for host in &mut plan.hosts {
            host.cpus = cpus_of(&file, &host.ranks);
        }
        Ok(plan)
    }

    fn plan_of_hosts(
        &self,
        hosts: &[ListedHost],
        starter: &HelperStarter,
        placement: HostPlacement,
    ) -> Result<HostPlan, LaunchError> {
        let helper = std::env::current_exe()
            .map_err(|why| LaunchError::machine(format!("finding this program's path: {why}")))?;
        let planned = placement.hosts.into_iter().map(|(host, ranks)| {
            let host = &hosts[host];
            let command = command(host, starter, &helper, self.patience());
            let command = command.map_err(LaunchError::usage)?;
            let name = host.name.clone();
            Ok(PlannedHost {
                name,
                ranks,
                cpus: Vec::new(),
                command,
            })
        });
        Ok(HostPlan {
            size: placement.size,
            mapping: placement.mapping,
            hosts: planned.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the time after which a silent host is lost. Below some beats, every delay would be a loss.
    pub(super) fn patience(&self) -> Duration {
        self.host_timeout.max(3 * super::BEAT)
    }

    /// Returns the directory of the ranks.
    pub(super) fn directory(&self) -> io::Result<PathBuf> {
        let here = std::env::current_dir()?;
        Ok(match &self.wdir {
            Some(folder) => here.join(folder),
            None => here,
        })
    }

    /// Returns the variables of the ranks, which are the same on all hosts.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_taken = |name: &OsStr| match self.no_env {
            true => name == "PATH",
            false => is_passed_on(name),
        };
        let all = std::env::vars_os().filter(|(name, _)| is_taken(name));
        let mut all: Vec<_> = all.collect();
        for word in &self.env {
            let bytes = word.as_bytes();
            let pair = match bytes.iter().position(|&byte| byte == b'=') {
                Some(at) => Some((&bytes[..at], OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
                None => std::env::var_os(word).map(|value| (bytes, value)),
            };
            if let Some((name, value)) = pair.filter(|(name, _)| !name.is_empty()) {
                let name = OsStr::from_bytes(name);
                all.retain(|(set, _)| set != name); // One value for the check of the program and for the ranks.
                all.push((name.to_owned(), value));
            }
        }
        all
    }

    /// Returns true if nothing is to be run.
    pub(in crate::run) fn only_print(&self) -> bool {
        self.print_hosts
    }

    fn starter(&self) -> Result<Option<HelperStarter>, String> {
        let set = std::env::var(START_WITH).ok();
        let (source, text) = match (&self.start_with, &set) {
            (Some(text), _) => ("--start-with ", text),
            (None, Some(text)) => ("RIPSTOP_START_WITH=", text),
            (None, None) => return Ok(None),
        };
        let starter = HelperStarter::parse(text);
        starter
            .map(Some)
            .map_err(|why| format!("{source}{text:?}: {why}"))
    }

    /// Returns the hosts, and the usual starter for them.
    fn list(&self) -> Result<Option<(Vec<ListedHost>, HelperStarter)>, String> {
        if let Some(text) = &self.hosts {
            let hosts = list::parse(text).map_err(|why| format!("--hosts: {why}"))?;
            return Ok(Some((hosts, HelperStarter::Ssh)));
        }
        if let Some(path) = &self.hostfile {
            let hosts = read(path).and_then(|bytes| list::parse_file(&bytes));
            let hosts = hosts.map_err(|why| format!("--hostfile {}: {why}", path.display()))?;
            return Ok(Some((hosts, HelperStarter::Ssh)));
        }
        if !self.allocation {
            return Ok(None);
        }
        let variable = |name: &str| std::env::var(name).ok();
        let found = allocation::find(&variable, &|path| read(Path::new(path)))
            .map_err(|why| format!("--allocation: {why}"))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let starter = match found.starter {
            // Not every installation of PBS has it.
            HelperStarter::PbsTmrsh if first_in(&path, OsStr::new("pbs_tmrsh")).is_none() => {
                HelperStarter::Ssh
            }
            starter => starter,
        };
        Ok(Some((found.hosts, starter)))
    }
}

impl HostPlan {
    /// Returns true if CPUs were named for a rank.
    pub(in crate::run) fn names_cpus(&self) -> bool {
        self.hosts.iter().any(|host| !host.cpus.is_empty())
    }

    /// Prints the number of ranks, and a line for each host: its ranks, and the command that would start its helper.
    pub(in crate::run) fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "ranks: {}, hosts: {}", self.size, self.hosts.len())?;
        for host in &self.hosts {
            let ranks = match host.cpus.is_empty() {
                true => message::ranks(&host.ranks),
                false => ranks_with_cpus(host),
            };
            let command = starter::typed(&host.command);
            writeln!(out, "{}: {ranks}: {command}", host.name)?;
        }
        out.flush()
    }
}

/// Returns the CPUs of these ranks, or nothing if the file names none for any of them.
fn cpus_of(file: &RankFile, ranks: &[u32]) -> Vec<Vec<u32>> {
    let cpus: Vec<_> = ranks
        .iter()
        .map(|&rank| file.cpus[rank as usize].clone())
        .collect();
    match cpus.iter().all(Vec::is_empty) {
        true => Vec::new(),
        false => cpus,
    }
}

/// Formats the ranks of a host, as in `rank 0 on CPUs 0-3, rank 1`.
fn ranks_with_cpus(host: &PlannedHost) -> String {
    let ranks = host.ranks.iter().zip(&host.cpus);
    let each: Vec<_> = ranks
        .map(|(rank, cpus)| match cpus.is_empty() {
            true => format!("rank {rank}"),
            false => format!("rank {rank} on {}", message::cpus(cpus)),
        })
        .collect();
    each.join(", ")
}

/// Reads a host file. A device or a pipe is refused before it is opened, because that could take forever.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    if path == Path::new("-") {
        return Err("standard input belongs to rank 0; write the list to a file".to_owned());
    }
    let kind = path.metadata().map_err(|why| why.to_string())?;
    if !kind.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let file = File::open(path).map_err(|why| why.to_string())?;
    let mut bytes = Vec::new();
    let most = u64::try_from(list::FILE_MAX + 1).unwrap_or(u64::MAX);
    file.take(most)
        .read_to_end(&mut bytes)
        .map_err(|why| why.to_string())?;
    Ok(bytes)
}

/// Returns what starts a helper on the host: on this machine, nothing but the helper itself.
fn command(
    host: &ListedHost,
    starter: &HelperStarter,
    helper: &Path,
    patience: Duration,
) -> Result<Vec<OsString>, String> {
    if host.user.is_none() && is_own(&host.name) {
        return Ok(vec![helper.into(), "node".into(), starter::PROTOCOL.into()]);
    }
    starter.command(host, helper, patience)
}

/// Returns true if the name means this machine: it is the host's own, or an address of one of its interfaces. A name that
/// is another alias of this machine is reached by the starter, like any other.
fn is_own(name: &str) -> bool {
    let own = rustix::system::uname();
    let is_name = own
        .nodename()
        .to_bytes()
        .eq_ignore_ascii_case(name.as_bytes());
    // What this machine sends to an address of its own has that address as its source.
    let address = name.parse::<IpAddr>().ok();
    let is_address = || address.is_some_and(|own| own.is_loopback() || source_to(own) == Some(own));
    is_name || name.eq_ignore_ascii_case("localhost") || is_address()
}

/// Returns the address from which this machine would send to another one. It sends nothing. A socket could be bound to foreign
/// addresses, too, if the system is set so.
fn source_to(address: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((address, DISCARD)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A port that is never reached.
const DISCARD: u16 = 9;

/// Overridden by `--start-with`.
const START_WITH: &str = "RIPSTOP_START_WITH";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_name_and_its_addresses() {
        let own = rustix::system::uname();
        assert!(is_own(&own.nodename().to_string_lossy()));
        for own in ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "::1"] {
            assert!(is_own(own), "{own}");
        }
        // A machine without a way to others has no more addresses.
        if let Some(own) = source_to([192, 0, 2, 1].into()) {
            assert!(is_own(&own.to_string()), "{own}");
        }
        for other in ["192.0.2.1", "2001:db8::1", "0.0.0.0", "localhost.invalid"] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn a_host_file_is_a_file() {
        for (path, why) in [
            ("-", "belongs to rank 0"),
            ("/dev/null", "no regular file"),
            ("/tmp", "no regular file"),
            ("/no/such/file", "No such file"),
        ] {
            let refused = read(Path::new(path)).unwrap_err();
            assert!(refused.contains(why), "{path}: {refused}");
        }
    }
}
