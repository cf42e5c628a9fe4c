//! Start-up: how long ranks take to exchange their addresses through the process manager that started them.
//!
//! Only the exchange is measured; no runtime is made. The ways take turns in one job, so that their ratios are fair. They are
//! those of `ripstop sim startup`.

use std::{process::ExitCode, time::Duration};

use clap::{ValueEnum, value_parser};
use ripstop::boot::{self, Boot, Environment, Node};

use super::{
    PerfError, clock, refuse,
    report::{ResultReport, ResultRow},
    samples::TimeSamples,
};

/// The exchange of addresses at start, through the process manager, in several ways
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct StartupArgs {
    /// Which ways take turns
    #[arg(
        long,
        value_name = "WAY",
        value_enum,
        value_delimiter = ',',
        default_value = "nodes,few,ranks,pairs"
    )]
    ways: Vec<StartupExchange>,

    /// Ranks on each node, if the job's one node stands for several [default: as they are]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    ranks_per_node: Option<u32>,

    /// How often each way is timed
    #[arg(long, value_name = "N", default_value = "5", value_parser = value_parser!(u32).range(1..=1000))]
    repeats: u32,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

/// Means by which addresses are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StartupExchange {
    /// The way of Ripstop: ranks of a node by shared memory, and a record of each node, which the node's leader reads
    Nodes,
    /// A record of each rank; each rank reads those of six, as where connections are made on demand
    Few,
    /// A record of each rank, which all others read
    Ranks,
    /// An address in two parts, and for each part a key of each pair and a fence for each distance, as in MVAPICH2 2.3.7
    Pairs,
}

/// Takes part in all exchanges; rank 0 prints.
pub(super) fn run(args: &StartupArgs) -> Result<ExitCode, PerfError> {
    let mut boot = boot::discover(&Environment::of_process())?;
    if boot.size == 1 {
        let sentence = "`ripstop perf startup` needs at least 2 ranks and this process is alone: start it with \
                        `mpiexec.hydra -n 32 ripstop perf startup` or `ripstop run -n 32 -- ripstop perf startup`";
        return Ok(refuse(true, sentence));
    }
    if let Some(each) = args.ranks_per_node {
        boot.node = Node {
            ranks: beside(boot.rank, boot.size, each),
            each: Some(each),
            most: each,
        };
    }
    let mut report = ResultReport::new(rank(&boot), args.json, args.ways.len());
    let mut times: Vec<TimeSamples> = args.ways.iter().map(|_| TimeSamples::new(1.0)).collect();
    let mut costs = vec![PmiRequestCounts::default(); args.ways.len()];
    for _ in 0..args.repeats {
        for (nth, way) in args.ways.iter().enumerate() {
            report.announce(format!("{way:?}"));
            let (nanos, cost) = way.time(&mut boot)?;
            times[nth].record(nanos);
            costs[nth] = cost;
        }
    }
    for ((way, samples), cost) in args.ways.iter().zip(&times).zip(&costs) {
        report.print(way.row(&boot, samples, cost))?;
    }
    boot.exchange.finalize()?;
    Ok(ExitCode::SUCCESS)
}

impl StartupArgs {
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    pub(super) fn lines(&self) -> usize {
        self.ways.len()
    }
}

impl StartupExchange {
    /// Measures from the end of one fence to the end of another, and counts the requests of this rank to the process manager in
    /// between.
    fn time(self, boot: &mut Boot) -> Result<(u64, PmiRequestCounts), PerfError> {
        boot.exchange.fence()?;
        let start = clock::now();
        let mut counting = CountingExchange::of(boot);
        self.exchange(&mut counting)?;
        counting.fence()?;
        let cost = counting.cost;
        Ok((clock::now() - start, cost))
    }

    fn exchange(self, counting: &mut CountingExchange<'_>) -> Result<(), PerfError> {
        let (rank, size) = (counting.boot.rank, counting.boot.size);
        match self {
            Self::Nodes => {
                let known = counting.nodes()?;
                check(known.len() == size as usize && known.iter().all(|at| at.len() == LEN))
            }
            Self::Few | Self::Ranks => {
                let most = if self == Self::Few { FEW } else { u32::MAX };
                counting.put(&format!("rank-{rank}"), &hex(rank, LEN))?;
                counting.fence()?;
                for other in (1..size).take(most as usize) {
                    let other = (rank + other) % size;
                    let at = counting.get(other, &format!("rank-{other}"))?;
                    check(at == hex(other, LEN))?;
                }
                Ok(())
            }
            Self::Pairs => {
                for part in ["lid", "qp"] {
                    for distance in 1..size {
                        let (to, from) =
                            ((rank + distance) % size, (rank + size - distance) % size);
                        counting.put(&format!("{part}-{rank}-{to}"), &hex(rank, PART_LEN))?;
                        counting.fence()?;
                        let at = counting.get(from, &format!("{part}-{from}-{rank}"))?;
                        check(at == hex(from, PART_LEN))?;
                    }
                }
                Ok(())
            }
        }
    }

    fn row(self, boot: &Boot, samples: &TimeSamples, cost: &PmiRequestCounts) -> ResultRow {
        let name = self
            .to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned());
        ResultRow::new("startup")
            .label("way", name)
            .label("ranks", boot.size)
            .field("ranks_per_node", boot.node.ranks.len())
            .field("launcher", boot.found)
            .figure("median_ms", "median ms", samples.micros_at(0.5) / 1e3)
            .figure("min_ms", "min ms", samples.micros_min() / 1e3)
            .figure("max_ms", "max ms", samples.micros_at(1.0) / 1e3)
            .label("puts", cost.puts)
            .label("fences", cost.fences)
            .label("gets", cost.gets)
            .field("repeats", samples.len())
    }
}

/// The requests of one rank to the process manager.
#[derive(Clone, Copy, Debug, Default)]
struct PmiRequestCounts {
    puts: u64,
    fences: u64,
    gets: u64,
}

/// An exchange that counts requests.
struct CountingExchange<'a> {
    boot: &'a mut Boot,
    cost: PmiRequestCounts,
}

impl<'a> CountingExchange<'a> {
    fn of(boot: &'a mut Boot) -> Self {
        Self {
            boot,
            cost: PmiRequestCounts::default(),
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), PerfError> {
        self.cost.puts += 1;
        Ok(self.boot.exchange.put(key, value)?)
    }

    fn fence(&mut self) -> Result<(), PerfError> {
        self.cost.fences += 1;
        Ok(self.boot.exchange.fence()?)
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, PerfError> {
        self.cost.gets += 1;
        let value = self.boot.exchange.get(from, key)?;
        Ok(value.ok_or_else(|| format!("no rank has put {key}"))?)
    }

    /// Exchanges addresses as a runtime does at start.
    fn nodes(&mut self) -> Result<Vec<Vec<u8>>, PerfError> {
        let Boot { rank, size, .. } = *self.boot;
        let mine = vec![u8::try_from(rank % 251)?; LEN];
        let board = boot::meet(self.boot, LIMIT)?;
        let known = boot::exchange(self.boot, &board, &mine, LIMIT)?;
        let leads = u64::from(rank == self.boot.node.leader());
        let nodes = u64::from(size).div_ceil(self.boot.node.ranks.len() as u64);
        let several = u64::from(nodes > 1);
        self.cost.puts += leads * (1 + several);
        self.cost.fences += 1 + several;
        self.cost.gets += (1 - leads) + leads * several * nodes;
        Ok(known)
    }
}

/// Returns the ranks of the node of `rank`, if nodes are filled in the order of ranks.
fn beside(rank: u32, size: u32, each: u32) -> Vec<u32> {
    let first = rank / each * each;
    (first..size.min(first.saturating_add(each))).collect()
}

fn rank(boot: &Boot) -> usize {
    boot.rank as usize
}

fn hex(rank: u32, len: usize) -> String {
    format!("{rank:0width$x}", width = 2 * len)
}

fn check(fine: bool) -> Result<(), PerfError> {
    if fine {
        Ok(())
    } else {
        Err("a rank received a wrong address".into())
    }
}

/// Bytes of an address, and of half of one.
const LEN: usize = 48;
const PART_LEN: usize = 4;
/// Neighbors in a three-dimensional stencil.
const FEW: u32 = 6;
const LIMIT: Duration = Duration::from_secs(60);

const EXAMPLE: &str = "\
Examples:
  mpiexec.hydra -n 128 ripstop perf startup --ranks-per-node 16
  ripstop run -n 64 -- ripstop perf startup --ways nodes,few --repeats 9 --json

puts, fences and gets count the requests of rank 0, which leads its node, to the process manager.";

#[cfg(test)]
mod tests {
    use super::beside;

    #[test]
    fn nodes_are_filled_in_the_order_of_ranks() {
        assert_eq!(beside(5, 8, 3), [3, 4, 5]);
        assert_eq!(beside(7, 8, 3), [6, 7]);
        assert_eq!(beside(7, 8, u32::MAX), (0..8).collect::<Vec<_>>());
    }
}
