//! What a case sees of the hosts: processes, connections, and when something has happened.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The hosts of the world in which this process is.
#[derive(Clone, Debug)]
pub(super) struct HostsView {
    pub(super) base: PathBuf,
    /// The folder with the programs.
    pub(super) built: PathBuf,
}

/// A process of a host.
#[derive(Clone, Debug)]
pub(super) struct HostProcess {
    pub(super) pid: u32,
    pub(super) words: String,
}

/// A TCP socket of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostSocket {
    pub(super) local_port: u16,
    pub(super) listens: bool,
}

impl HostsView {
    /// Returns `ripstop run` of a program that was built, with a time limit as a guard against hangs. The ranks choose a network.
    pub(super) fn job(&self, options: &str, program: &str, arguments: &str) -> Command {
        let mut command = Command::new(self.built.join("ripstop"));
        command.args(["run", "--timeout", "90"]);
        command.args(options.split_whitespace()).arg("--");
        command.arg(self.built.join(program));
        command.args(arguments.split_whitespace());
        command.env_remove("RIPSTOP_FABRIC");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a tool of the world.
    pub(super) fn tool(&self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let tool = words.next().unwrap_or_default();
        let ended = Command::new(tool).args(words).status();
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{line}`: {status}")),
            Err(why) => Err(format!("`{line}`: {why}")),
        }
    }

    /// Returns all processes of a host but its first, which is the sshd.
    pub(super) fn processes(&self, host: &str) -> Result<Vec<HostProcess>, String> {
        let first = self.first(host)?;
        let space = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid"));
        let own = space(first).map_err(|why| format!("the processes of {host}: {why}"))?;
        let entries = fs::read_dir("/proc").map_err(|why| format!("/proc: {why}"))?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let of_host = pids.filter(|&pid| pid != first && space(pid).is_ok_and(|of| of == own));
        Ok(of_host
            .map(|pid| HostProcess {
                pid,
                words: words(pid),
            })
            .collect())
    }

    /// Returns the processes of a host that run a program that was built: the helper and its ranks.
    pub(super) fn ours(&self, host: &str) -> Result<Vec<HostProcess>, String> {
        let built = self.built.display().to_string();
        let mut all = self.processes(host)?;
        all.retain(|process| process.words.starts_with(&built));
        Ok(all)
    }

    /// Returns the processes of a host that run an example.
    pub(super) fn ranks(&self, host: &str) -> Result<Vec<HostProcess>, String> {
        let examples = self.built.join("examples").display().to_string();
        let mut all = self.processes(host)?;
        all.retain(|process| process.words.starts_with(&examples));
        Ok(all)
    }

    /// Returns the TCP sockets of a host that listen or are connected, but for those of ssh.
    pub(super) fn sockets(&self, host: &str) -> Result<Vec<HostSocket>, String> {
        let first = self.first(host)?;
        let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{first}/net/{table}"));
        let text: Vec<String> = tables
            .iter()
            .filter_map(|table| fs::read_to_string(table).ok())
            .collect();
        Ok(text.concat().lines().filter_map(socket).collect())
    }

    /// Returns how many TCP segments these hosts have sent again.
    pub(super) fn sent_again(&self, hosts: &[&str]) -> Result<u64, String> {
        hosts.iter().map(|host| self.sent_again_by(host)).sum()
    }

    fn sent_again_by(&self, host: &str) -> Result<u64, String> {
        let table = format!("/proc/{}/net/snmp", self.first(host)?);
        let text = fs::read_to_string(&table).map_err(|why| format!("{table}: {why}"))?;
        counter(&text, "Tcp:", "RetransSegs").ok_or_else(|| format!("{table}: no RetransSegs"))
    }

    /// Waits until nothing is left of a job on any host.
    pub(super) fn leaves_nothing(&self) -> Result<(), String> {
        HOSTS.iter().try_for_each(|host| self.is_empty(host))
    }

    /// Waits until nothing is left of a job on a host: no process, also none of ssh, and no shared memory.
    fn is_empty(&self, host: &str) -> Result<(), String> {
        let mut left = String::new();
        wait_for(&format!("{host} to be empty"), || {
            let processes = self.processes(host)?;
            let root = PathBuf::from(format!("/proc/{}/root", self.first(host)?));
            let shared = fs::read_dir(root.join("dev/shm"));
            let shared = shared.map_err(|why| format!("shared memory of {host}: {why}"))?;
            let files: Vec<_> = shared.flatten().map(|entry| entry.file_name()).collect();
            left = format!("{processes:?}, {files:?}");
            Ok((processes.is_empty() && files.is_empty()).then_some(()))
        })
        .map_err(|why| format!("{why}: {left}"))
    }

    /// Waits until both ranks of each of these hosts are there, and are connected with those of other hosts.
    ///
    /// # Errors
    /// The job ended before that was seen.
    pub(super) fn in_mid_job(&self, job: &mut Child, hosts: &[&str]) -> Result<(), String> {
        hosts.iter().try_for_each(|host| {
            wait_under(job, &format!("the ranks of {host}"), || {
                let connected = self.sockets(host)?.iter().any(|socket| !socket.listens);
                Ok((connected && self.ranks(host)?.len() == 2).then_some(()))
            })
        })
    }

    fn first(&self, host: &str) -> Result<u32, String> {
        let file = self.base.join(format!("{host}.first"));
        let text = fs::read_to_string(&file).map_err(|why| format!("{}: {why}", file.display()))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{}: {text}", file.display()))
    }
}

/// Returns the words of a process's command line, or nothing for one that has ended.
fn words(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

/// Parses a line of `/proc/net/tcp`.
fn socket(line: &str) -> Option<HostSocket> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    let (local, remote) = (port(words.get(1)?)?, port(words.get(2)?)?);
    let listens = match *words.get(3)? {
        "0A" => true,
        "01" => false,
        _ => return None,
    };
    let is_ssh = local == SSH || remote == SSH;
    (!is_ssh).then_some(HostSocket {
        local_port: local,
        listens,
    })
}

/// Finds a counter in a table that has a line of names and a line of numbers for each protocol.
fn counter(table: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter(|line| line.starts_with(protocol));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|word| word == name)?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

/// Looks again and again until there is something to return.
#[expect(
    clippy::disallowed_methods,
    reason = "a guard against a hang, in real time"
)]
pub(super) fn wait_for<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, String>,
) -> Result<T, String> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > GUARD {
            return Err(format!("waited {} s for {what}", GUARD.as_secs()));
        }
        thread::park_timeout(PAUSE);
    }
}

/// Like `wait_for`, for something that happens while a job runs.
///
/// # Errors
/// The job ended before.
pub(super) fn wait_under<T>(
    job: &mut Child,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, String>,
) -> Result<T, String> {
    wait_for(what, || {
        // The order matters: what happened before the job ended is still seen.
        let is_over = is_over(job)?;
        match look()? {
            None if is_over => Err(format!("the job ended, and still waited for: {what}")),
            found => Ok(found),
        }
    })
}

/// Calls `run` with the seconds that a job is to take, until it returns true: what must happen during the job has happened. On a
/// busy machine the job may end before, and then a longer one begins.
pub(super) fn before_the_end(
    mut run: impl FnMut(u32) -> Result<bool, String>,
) -> Result<(), String> {
    for seconds in [2, 10, 40] {
        if run(seconds)? {
            return Ok(());
        }
    }
    Err("jobs of 2, 10 and 40 s ended before the case had happened".to_owned())
}

/// Returns true if a job has ended.
pub(super) fn is_over(job: &mut Child) -> Result<bool, String> {
    let ended = job.try_wait().map_err(|why| format!("a job: {why}"))?;
    Ok(ended.is_some())
}

/// Waits for the end of a job, and checks its exit code and what it said on its standard error.
pub(super) fn ends(job: Child, code: i32, expected: &[&str]) -> Result<String, String> {
    let ended = job
        .wait_with_output()
        .map_err(|why| format!("a job: {why}"))?;
    let (out, said) = texts(&ended);
    let missing: Vec<&&str> = expected
        .iter()
        .filter(|part| !said.contains(**part))
        .collect();
    if ended.status.code() == Some(code) && missing.is_empty() {
        return Ok(out);
    }
    Err(format!(
        "{}, expected code {code} and {missing:?}\n{out}{said}",
        ended.status
    ))
}

fn texts(ended: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&ended.stdout), text(&ended.stderr))
}

/// Starts a job.
pub(super) fn start(mut job: Command) -> Result<Child, String> {
    job.spawn()
        .map_err(|why| format!("`ripstop` does not start: {why}"))
}

/// All hosts of the suite.
pub(super) const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];

const SSH: u16 = 22;

/// Longer than anything takes that a case waits for.
const GUARD: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::{HostSocket, counter, socket};

    #[test]
    fn sockets_of_ssh_are_none_of_a_job() {
        let line = |local: &str, remote: &str, state: &str| {
            socket(&format!(
                "   0: 0100630A:{local} 0200630A:{remote} {state} 00000000:00000000 00:00000000"
            ))
        };
        let of = |listens| {
            Some(HostSocket {
                local_port: 0x1234,
                listens,
            })
        };
        assert_eq!(line("1234", "0000", "0A"), of(true));
        assert_eq!(line("1234", "4321", "01"), of(false));
        assert_eq!(line("1234", "4321", "06"), None);
        assert_eq!(line("0016", "0000", "0A"), None);
        assert_eq!(line("1234", "0016", "01"), None);
        assert_eq!(
            socket("  sl  local_address rem_address   st tx_queue rx_queue"),
            None
        );
    }

    #[test]
    fn a_counter_is_found_by_its_name() {
        let table = "Ip: A B\nIp: 1 2\nTcp: A RetransSegs\nTcp: 3 4\n";
        assert_eq!(counter(table, "Tcp:", "RetransSegs"), Some(4));
        assert_eq!(counter(table, "Tcp:", "B"), None);
        assert_eq!(counter("", "Tcp:", "A"), None);
    }
}
