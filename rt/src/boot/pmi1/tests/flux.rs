//! Tests that play the shell of a Flux job, which serves PMI-1 in its own way.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};

use super::environment_below;
use crate::boot::wire::WireLine;
use crate::boot::{Boot, BootError, discover};

/// A shell that starts all ranks of a job on one host.
///
/// `rc` comes first in its answers, a missing key has no value and no message, and the name of the key space has a letter that
/// is no ASCII.
struct FluxShell {
    ranks: u32,
    /// The value of `PMI_process_mapping`. Flux has none if it would be too long.
    mapping: Option<&'static str>,
    state: Mutex<ShellState>,
    released: Condvar,
}

#[derive(Default)]
struct ShellState {
    pairs: BTreeMap<String, String>,
    waiting: u32,
    /// Number of barriers that all ranks have passed.
    barriers: u32,
}

impl FluxShell {
    /// Runs `rank` on each rank of a job, and returns what the ranks return.
    fn run<T: Send>(
        ranks: u32,
        mapping: Option<&'static str>,
        rank: impl Fn(Result<Boot, BootError>) -> T + Sync,
    ) -> Vec<T> {
        let shell = Arc::new(Self {
            ranks,
            mapping,
            state: Mutex::default(),
            released: Condvar::new(),
        });
        let rank = &rank;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks)
                .map(|number| {
                    let shell = Arc::clone(&shell);
                    scope.spawn(move || {
                        let (ours, theirs) = UnixStream::pair().unwrap();
                        let server = std::thread::spawn(move || shell.serve(&theirs));
                        let of_flux = [
                            ("FLUX_JOB_SIZE", ranks.to_string()),
                            ("FLUX_TASK_RANK", number.to_string()),
                        ];
                        let found = discover(&environment_below(&ours, number, ranks, of_flux));
                        let result = rank(found);
                        drop(ours); // The shell would wait for another request.
                        server.join().unwrap();
                        result
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    fn serve(&self, mut socket: &UnixStream) {
        for line in BufReader::new(socket).lines() {
            let line = line.unwrap();
            let answer = self.answer(WireLine::parse(line.as_bytes()).unwrap());
            socket.write_all(answer.as_bytes()).unwrap();
            if answer.starts_with("cmd=finalize_ack") {
                return;
            }
        }
    }

    fn answer(&self, line: WireLine<'_>) -> String {
        let said = |name| line.attribute(name).unwrap().to_owned();
        let mut state = self.state.lock().unwrap();
        match line.command() {
            "init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n".to_owned(),
            "get_maxes" => {
                "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024\n".to_owned()
            }
            "get_my_kvsname" => format!("cmd=my_kvsname rc=0 kvsname={SPACE}\n"),
            "put" => {
                assert_eq!(said("kvsname"), SPACE);
                state.pairs.insert(said("key"), said("value"));
                "cmd=put_result rc=0\n".to_owned()
            }
            "get" => {
                let key = said("key");
                let found = match key.as_str() {
                    "PMI_process_mapping" => self.mapping.map(str::to_owned),
                    _ => state.pairs.get(&key).cloned(),
                };
                found.map_or_else(
                    || "cmd=get_result rc=4\n".to_owned(),
                    |value| format!("cmd=get_result rc=0 value={value}\n"),
                )
            }
            "barrier_in" => {
                let before = state.barriers;
                state.waiting += 1;
                if state.waiting == self.ranks {
                    (state.waiting, state.barriers) = (0, before + 1);
                    self.released.notify_all();
                }
                drop(
                    self.released
                        .wait_while(state, |state| state.barriers == before)
                        .unwrap(),
                );
                "cmd=barrier_out rc=0\n".to_owned()
            }
            "finalize" => "cmd=finalize_ack rc=0\n".to_owned(),
            other => panic!("Flux does not answer {other}"),
        }
    }
}

/// Numbers of Flux's jobs are written so in a UTF-8 locale.
const SPACE: &str = "ƒ2XbqT9aP";

fn exchange(found: Result<Boot, BootError>) -> Vec<u32> {
    let mut boot = found.unwrap();
    assert_eq!(boot.found, "pmi-1");
    let value = |rank: u32| format!("{rank}-{}", "x".repeat(3000));
    let (rank, next) = (boot.rank, (boot.rank + 1) % boot.size);
    boot.exchange
        .put(&format!("a{rank}"), &value(rank))
        .unwrap();
    boot.exchange.fence().unwrap();
    let its = boot.exchange.get(next, &format!("a{next}")).unwrap();
    assert_eq!(its, Some(value(next)));
    assert_eq!(boot.exchange.get(next, "missing").unwrap(), None);
    boot.exchange.finalize().unwrap();
    boot.node.ranks
}

#[test]
fn ranks_of_flux_exchange_values_and_know_their_node() {
    let nodes = FluxShell::run(4, Some("(vector,(0,2,2))"), exchange);
    assert_eq!(nodes, [[0, 1], [0, 1], [2, 3], [2, 3]]);
    let alone = FluxShell::run(1, Some("(vector,(0,1,1))"), exchange);
    assert_eq!(alone, [[0]]);
}

#[test]
fn ranks_of_flux_without_a_mapping_compare_their_machines() {
    let nodes = FluxShell::run(3, None, exchange);
    assert_eq!(nodes, [[0, 1, 2], [0, 1, 2], [0, 1, 2]]);
}
