//! The PMI-1.1 client. Hydra, Slurm's `--mpi=pmi2`, Flux and `ripstop run` serve this protocol.
//!
//! Servers handle a request that is too long, unknown or contains a space in different ways, and all of them are bad.
//! So this client sends only requests of version 1.1 that fit [`wire::REQUEST_MAX`], and checks every answer before it
//! is used.

mod fd;
mod pieces;
mod stream;
mod survive;

use std::collections::BTreeMap;

use super::wire::{self, WireLine};
use super::{
    Boot, BootError, Environment, Exchange, FailureReporter, Node, check_key, check_value, error,
    mapping,
};
pub(crate) use fd::own_stream;
use stream::Pmi1Stream;

/// Returns true if a launcher has started this very process: its connection exists, and not only variables that may
/// come from a launcher further up.
pub(super) fn is_connected(environment: &Environment) -> bool {
    let named = ["PMI_RANK", "PMI_SIZE"]
        .iter()
        .all(|name| environment.get(name).is_some());
    let number = environment.get("PMI_FD").and_then(|fd| fd.parse().ok());
    named && number.is_some_and(fd::is_inherited)
}

/// Joins the job of the launcher behind `PMI_FD`.
pub(super) fn join(environment: &Environment) -> Result<Boot, BootError> {
    let fd = required(environment, "PMI_FD", 0, u32::from(u16::MAX) * 16)?;
    let size = required(environment, "PMI_SIZE", 1, SIZE_MAX)?;
    let rank = required(environment, "PMI_RANK", 0, size - 1)?;
    let socket = fd::inherited(fd)?;
    let ours = environment
        .get(LAUNCHER)
        .is_some_and(|named| wire::connection(fd, &socket).is_ok_and(|mine| mine == named));
    if !ours {
        survive::outlive_sigusr1();
    }
    let mut client = Pmi1Client::new(Pmi1Stream::new(socket, environment.answer_limit()?), ours)?;
    let node = client.node_of(rank, size, environment)?;
    Ok(Boot {
        rank,
        size,
        node,
        exchange: Box::new(client),
        found: "pmi-1",
    })
}

fn required(
    environment: &Environment,
    name: &'static str,
    least: u32,
    most: u32,
) -> Result<u32, BootError> {
    let expected = || {
        BootError::variable(
            name,
            "",
            "the number that a PMI-1 launcher sets; RIPSTOP_BOOT=singleton runs one rank",
        )
    };
    environment.number(name, least, most)?.ok_or_else(expected)
}

/// A rank's end of the connection, after the greeting.
#[derive(Debug)]
struct Pmi1Client {
    stream: Pmi1Stream,
    /// Name of the key space, which every put and get repeats.
    space: String,
    key_max: usize,
    value_max: usize,
    /// True if the launcher is `ripstop run`, which also understands the reason of an abort.
    ours: bool,
    /// True if the launcher is `ripstop run` and reads reports, to which it sends no answer.
    hears: bool,
    /// Requests already sent, before the answers to earlier ones arrived.
    ahead: u32,
    over: bool,
}

impl Pmi1Client {
    fn new(stream: Pmi1Stream, ours: bool) -> Result<Self, BootError> {
        let mut client = Self {
            stream,
            space: String::new(),
            key_max: 0,
            value_max: 0,
            ours,
            hears: false,
            ahead: 0,
            over: false,
        };
        if ours {
            client.ask_ahead();
        }
        client.greet()?;
        client.learn_limits()?;
        client.space = client
            .ask("get_my_kvsname", &[], "my_kvsname")?
            .required("kvsname")?;
        Ok(client)
    }

    /// Sends the three requests of the greeting together, which saves two process switches for each rank at start.
    ///
    /// Other launchers than `ripstop run` may read only one line at a time, so this is for `ripstop run` only.
    fn ask_ahead(&mut self) {
        let rest = ["get_maxes", "get_my_kvsname"].map(|command| wire::line(command, &[]));
        self.stream
            .send_lines(&(wire::line("init", &VERSION) + &rest.concat()));
        self.ahead = 3;
    }

    fn greet(&mut self) -> Result<(), BootError> {
        let answer = self.ask("init", &VERSION, "response_to_init")?;
        let ours = answer
            .line()
            .attribute("pmi_version")
            .is_none_or(|version| version == "1");
        if !ours {
            return Err(answer.garbled("this client speaks PMI-1"));
        }
        self.hears = self.ours && answer.line().attribute(wire::HEARS).is_some();
        answer.success()
    }

    fn learn_limits(&mut self) -> Result<(), BootError> {
        let answer = self.ask("get_maxes", &[], "maxes")?;
        let limit = |name, cap: usize| {
            let limit: usize = answer
                .line()
                .number(name)
                .ok_or_else(|| answer.garbled(&format!("{name} is not a number")))?;
            let usable = limit.saturating_sub(1).min(cap);
            if usable < SHORT {
                Err(answer.garbled(&format!("{name} is too small")))
            } else {
                Ok(usable)
            }
        };
        self.key_max = limit("keylen_max", 63)?;
        self.value_max = limit("vallen_max", 1023)?;
        Ok(())
    }

    /// Sends one request, and returns one answer of the expected kind.
    fn ask(
        &mut self,
        command: &str,
        attributes: &[(&str, &str)],
        expected: &str,
    ) -> Result<Pmi1Answer, BootError> {
        if self.over {
            return Err(BootError::Over);
        }
        let answer = self.exchange(command, attributes, expected);
        self.over = answer.is_err(); // after a failure, an answer could be mistaken for that to another request
        answer
    }

    fn exchange(
        &mut self,
        command: &str,
        attributes: &[(&str, &str)],
        expected: &str,
    ) -> Result<Pmi1Answer, BootError> {
        let request = wire::line(command, attributes);
        let bytes = if self.ahead > 0 {
            self.ahead -= 1;
            self.stream.read_reply(&request)?
        } else {
            self.stream.request(&request)?
        };
        let request = request.trim_end().to_owned();
        let answer = Pmi1Answer { request, bytes };
        let line =
            WireLine::parse(&answer.bytes).map_err(|why| answer.garbled(&why.to_string()))?;
        if line.command() == expected {
            Ok(answer)
        } else {
            Err(answer.garbled(&format!("expected cmd={expected}")))
        }
    }

    fn put_short(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        let space = self.space.clone();
        self.ask(
            "put",
            &[("kvsname", &space), ("key", key), ("value", value)],
            "put_result",
        )?
        .success()
    }

    /// Returns the value of a key. For a missing key, `rc` is not 0, but some servers send a value nevertheless.
    fn get_short(&mut self, key: &str) -> Result<Option<String>, BootError> {
        let space = self.space.clone();
        let answer = self.ask("get", &[("kvsname", &space), ("key", key)], "get_result")?;
        if answer.rc()? != 0 {
            return Ok(None);
        }
        answer.required("value").map(Some)
    }

    /// Returns how many bytes of a value fit into one request with the longest possible name of a piece of `key`.
    fn room(&self, key: &str) -> Result<usize, BootError> {
        let name = pieces::name_max(key);
        let empty = wire::line(
            "put",
            &[("kvsname", &self.space), ("key", &name), ("value", "")],
        );
        let room = wire::REQUEST_MAX
            .saturating_sub(empty.len())
            .min(self.value_max);
        if room < SHORT || name.len() > self.key_max {
            let why = format!(
                "the launcher's limits leave no room (keys of {}, values of {})",
                self.key_max, self.value_max
            );
            return Err(BootError::Value {
                key: key.to_owned(),
                why,
            });
        }
        Ok(room)
    }

    /// Returns this rank's node. The launcher says where the ranks are; otherwise, the ranks exchange which machine
    /// they run on.
    fn node_of(
        &mut self,
        rank: u32,
        size: u32,
        environment: &Environment,
    ) -> Result<Node, BootError> {
        // The variable is read only where it counts: other launchers may give it another meaning.
        let all_local = || {
            let locals = environment.number("MPI_LOCALNRANKS", 1, SIZE_MAX);
            locals.map(|locals| locals == Some(size))
        };
        if size == 1 || self.ours && all_local()? {
            return Ok(Node::only(size)); // `ripstop run` counts the ranks of each host
        }
        if let Some(mapping) = self.get_short(MAPPING)? {
            return mapping::node_of(rank, size, &mapping).map_err(|why| BootError::Garbled {
                request: format!("get {MAPPING}"),
                answer: error::printable(&mapping),
                why,
            });
        }
        // Only a value that is the same on all ranks may decide whether they enter the fence below. Below
        // `ripstop run`, the variable may come from `ripstop run` and count its ranks, not those of a launcher in between.
        let all_here = environment.get(LAUNCHER).is_none() && all_local()?;
        if all_here {
            Ok(Node::only(size))
        } else {
            self.ranks_on_machine(rank, size)
        }
    }

    fn ranks_on_machine(&mut self, rank: u32, size: u32) -> Result<Node, BootError> {
        let machine = machine()?;
        self.put(&format!("ripstop-machine-{rank}"), &machine)?;
        self.fence()?;
        let mut ranks = Vec::new();
        let mut sizes = BTreeMap::new();
        for other in 0..size {
            let key = format!("ripstop-machine-{other}");
            let its = self.get(other, &key)?;
            // Ranks that see different values would not agree on which ranks share a node, and a node could have no
            // leader.
            if its.is_none() || other == rank && its.as_ref() != Some(&machine) {
                return Err(BootError::Garbled {
                    request: format!("get {key}"),
                    answer: its
                        .map_or_else(|| "no such key".to_owned(), |its| error::printable(&its)),
                    why: format!(
                        "it is not the value that rank {other} put there before the fence"
                    ),
                });
            }
            if its.as_ref() == Some(&machine) {
                ranks.push(other);
            }
            *sizes.entry(its).or_insert(0) += 1;
        }
        Ok(Node {
            ranks,
            each: None,
            most: sizes.into_values().max().unwrap_or(size),
        })
    }
}

impl Exchange for Pmi1Client {
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        check_key(key)?;
        check_value(key, value)?;
        for (name, piece) in pieces::split(key, value, self.room(key)?)? {
            self.put_short(&name, &piece)?;
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.ask("barrier_in", &[], "barrier_out")?
            .success_if_said()
    }

    fn get(&mut self, _from: u32, key: &str) -> Result<Option<String>, BootError> {
        check_key(key)?;
        pieces::join(key, |name| self.get_short(name))
    }

    fn settle(&mut self) -> Result<(), BootError> {
        if self.ours {
            self.stream.die_with_launcher()
        } else {
            Ok(()) // another launcher may send unrequested data, or close early
        }
    }

    fn job_name(&self) -> Option<String> {
        let pid = self.space.strip_prefix("ripstop-").filter(|_| self.ours);
        Some(pid.unwrap_or(&self.space).to_owned())
    }

    fn reporter(&self) -> Option<FailureReporter> {
        let socket = self.stream.duplicate().ok().filter(|_| self.hears)?;
        Some(FailureReporter::socket(socket))
    }

    fn abort(&mut self, code: i32, why: &str) {
        let code = code.to_string();
        let why = wire::hex(why);
        let attributes = [("exitcode", code.as_str()), ("why", why.as_str())];
        let known = if self.ours {
            &attributes[..]
        } else {
            &attributes[..1]
        };
        self.over = true;
        self.stream.send_lines(&wire::line("abort", known));
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        if self.over {
            return Ok(());
        }
        if self.ours {
            self.stream.outlive_launcher();
        }
        let acknowledged = self.ask("finalize", &[], "finalize_ack");
        self.over = true;
        self.stream.close();
        match acknowledged {
            // Some servers close the connection instead of answering the last request.
            Ok(_) | Err(BootError::LauncherGone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A line that parses and answers `request`.
struct Pmi1Answer {
    request: String,
    bytes: Vec<u8>,
}

impl Pmi1Answer {
    fn line(&self) -> WireLine<'_> {
        WireLine::parse(&self.bytes).expect("an answer is made from a line that parsed")
    }

    fn required(&self, name: &str) -> Result<String, BootError> {
        let value = self
            .line()
            .attribute(name)
            .filter(|value| !value.is_empty());
        value
            .map(str::to_owned)
            .ok_or_else(|| self.garbled(&format!("it has no {name}")))
    }

    fn rc(&self) -> Result<i64, BootError> {
        self.line()
            .number("rc")
            .ok_or_else(|| self.garbled("it has no number rc"))
    }

    fn success(&self) -> Result<(), BootError> {
        if self.rc()? == 0 {
            Ok(())
        } else {
            Err(self.refused())
        }
    }

    /// Checks for success. An answer without `rc` counts as success.
    fn success_if_said(&self) -> Result<(), BootError> {
        if self.line().attribute("rc").is_none() {
            Ok(())
        } else {
            self.success()
        }
    }

    fn refused(&self) -> BootError {
        BootError::Refused {
            request: error::printable(&self.request),
            answer: self.shown(),
        }
    }

    fn garbled(&self, why: &str) -> BootError {
        BootError::Garbled {
            request: error::printable(&self.request),
            answer: self.shown(),
            why: why.to_owned(),
        }
    }

    fn shown(&self) -> String {
        error::printable(String::from_utf8_lossy(&self.bytes).trim_end())
    }
}

/// Returns a text that is equal for two ranks exactly if they run on the same machine: the boot id of its kernel, and
/// its host name.
fn machine() -> Result<String, BootError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(path)
        .map_err(|error| BootError::io(&format!("reading {path}"), error))?;
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    Ok(format!("{}-{}", boot.trim(), wire::hex(&name)))
}

const VERSION: [(&str, &str); 2] = [("pmi_version", "1"), ("pmi_subversion", "1")];

const MAPPING: &str = "PMI_process_mapping";

const LAUNCHER: &str = "RIPSTOP_LAUNCHER";

/// Most ranks of a job, more than any machine has cores. The limit bounds what is allocated per rank before anything else is
/// known.
const SIZE_MAX: u32 = 1 << 24;

/// Minimum room for a key or a value: a server with less is not a real one.
const SHORT: usize = 32;

#[cfg(test)]
mod tests;
