//! Put and get, measured at the driver, without a runtime. The target's processor does nothing.
#![expect(unsafe_code, reason = "promises a driver that local memory stays")]

use std::{process::ExitCode, time::Duration};

use ripstop::{
    boot::{self, Boot, Environment},
    settings::Settings,
};
use ripstop_fabric::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, LocalRange, PayloadView,
        PostResult, Sink, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    shm::{Board, Shm, ShmConfig},
};

use super::{
    PerfError, clock,
    counts::PerfCounts,
    options::{CommonOptions, bytes},
    refuse,
    report::{ResultReport, ResultRow, human},
    samples::TimeSamples,
};

/// Time and bandwidth of one-sided commands on registered memory, by the driver of shared memory; the other rank sleeps.
#[derive(clap::Args, Debug)]
pub(super) struct OneSidedArgs {
    /// Lengths in bytes, separated by commas; K, M and G are powers of 1024
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes, default_value = "8,4096,65536,1048576")]
    size: Vec<usize>,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

impl OneSidedArgs {
    pub(super) fn lines(&self) -> usize {
        self.size.len()
    }
}

pub(super) fn run(
    program: &'static str,
    args: &OneSidedArgs,
    baseline: Option<&str>,
) -> Result<ExitCode, PerfError> {
    let mut boot = boot::discover(&Environment::of_process())?;
    if let Some(sentence) = refuses(program, &Settings::from_environment()?, baseline) {
        return Ok(refuse(boot.rank == 0, &sentence));
    }
    if boot.size != 2 || boot.node.ranks.len() != 2 {
        let sentence = format!(
            "`ripstop perf {program}` needs 2 ranks on one node and there are {}: \
             start it with `ripstop run -n 2 -- ripstop perf {program}`",
            boot.size
        );
        return Ok(refuse(boot.rank == 0, &sentence));
    }
    let board = meet(&mut boot)?;
    let len = args.size.iter().copied().max().unwrap_or(1);
    let mut side = RankDriver::open(&mut boot, &board, len)?;
    if boot.rank == 0 {
        let mut report = ResultReport::new(0, args.common.json, args.lines());
        for &size in &args.size {
            report.announce(format!("{program} {}", human(size)));
            report.print(side.measure(program, &args.common, size))?;
        }
    }
    boot.exchange.fence()?;
    drop(side);
    boot.exchange.finalize()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns why another driver cannot be measured this way.
fn refuses(program: &str, settings: &Settings, baseline: Option<&str>) -> Option<String> {
    let asked = match baseline {
        Some(name) => format!("{name} stands"),
        _ if !settings.fabric.is_shared_memory() => {
            format!("RIPSTOP_FABRIC={} stands", settings.fabric.name())
        }
        _ => return None,
    };
    let (one, many) = match program {
        "put" => ("lock-flush", "put-stream"),
        _ => ("get-flush", "get-stream"),
    };
    Some(format!(
        "`ripstop perf {program}` measures the driver of shared memory by itself, but {asked} for another driver: use \
         `ripstop perf {one}`, or `ripstop perf {many}` for 64 at a time, which use the runtime"
    ))
}

fn meet(boot: &mut Boot) -> Result<Board, PerfError> {
    if boot.rank == 0 {
        let board = Board::create(boot.size)?;
        boot.exchange.put("perf-board", &board.address())?;
        boot.exchange.fence()?;
        let _meeting = board.meet()?;
        let absent =
            "a rank did not attach to the board of rank 0: check whether it failed at start";
        board
            .wait_for_all(Duration::from_secs(60))
            .map_err(|_| absent)?;
        return Ok(board);
    }
    boot.exchange.fence()?;
    let address = boot.exchange.get(0, "perf-board")?;
    let address = address.ok_or(
        "rank 0 did not publish the address of its board: check whether it failed at start",
    )?;
    Ok(Board::attach(&address)?)
}

/// One rank's driver, its memory, and the key to the other's.
struct RankDriver {
    driver: Shm,
    config: ShmConfig,
    /// Memory that commands read from and write to on this side.
    local: MemoryRegion,
    /// Memory that the other rank accesses; kept alive for it.
    _window: MemoryRegion,
    key: RemoteRegion,
    sink: CountingSink,
}

impl RankDriver {
    fn open(boot: &mut Boot, board: &Board, len: usize) -> Result<Self, PerfError> {
        let config = ShmConfig::new(boot.rank);
        let mut driver = Shm::open(board, config.clone())?;
        let (window, local) = (driver.allocate(len)?, driver.allocate(len)?);
        local.write(0, &vec![1; len]);
        window.write(0, &vec![2; len]);
        // SAFETY: the range is not used before the holder of the key uses it, and the window lives as long as this driver.
        let range = unsafe { LocalRange::new(window.at(0, len), len) };
        let mine = driver
            .expose(range)
            .ok_or("registered memory without a key")?;
        boot.exchange
            .put(&format!("perf-key-{}", boot.rank), &words(&mine))?;
        boot.exchange.fence()?;
        let theirs = boot
            .exchange
            .get(1 - boot.rank, &format!("perf-key-{}", 1 - boot.rank))?;
        let key = theirs
            .as_deref()
            .and_then(key_of)
            .ok_or("the other rank did not publish its key")?;
        let sink = CountingSink::default();
        Ok(Self {
            driver,
            config,
            local,
            _window: window,
            key,
            sink,
        })
    }

    fn measure(&mut self, program: &'static str, common: &CommonOptions, size: usize) -> ResultRow {
        let puts = program == "put";
        let (iters, windows) = (common.iters(size), common.windows(size));
        for _ in 0..common.warmup(iters, 10) {
            self.one(puts, size);
        }
        let (mut single, mut window) = (TimeSamples::new(1.0), TimeSamples::new(1.0));
        let before = PerfCounts::of(&self.config.counters.snapshot());
        for _ in 0..iters {
            let start = clock::now();
            self.one(puts, size);
            single.record(clock::now() - start);
        }
        for _ in 0..windows {
            let start = clock::now();
            self.many(puts, size, WINDOW);
            window.record(clock::now() - start);
        }
        let tally = PerfCounts::of(&self.config.counters.snapshot()).since(before);
        let bytes = lossy(size) * f64::from(WINDOW);
        ResultRow::new(program)
            .size(size)
            .times(&single)
            .figure("mb_per_s", "MB/s", bytes / window.micros_at(0.5))
            .figure("best_mb_per_s", "best MB/s", bytes / window.micros_min())
            .field("window", WINDOW)
            .field("fabric", "shm")
            .cost(tally, iters + windows * u64::from(WINDOW))
    }

    fn one(&mut self, puts: bool, size: usize) {
        self.many(puts, size, 1);
    }

    /// Posts `count` commands and drives them to completion.
    fn many(&mut self, puts: bool, size: usize, count: u32) {
        self.sink.left = count;
        let mut posted = 0;
        while self.sink.left > 0 {
            while posted < count && self.post(puts, size) {
                posted += 1;
            }
            let _moved = self.driver.progress(BUDGET, &mut self.sink);
        }
    }

    /// Posts one command. Returns false if there was no room.
    fn post(&mut self, puts: bool, size: usize) -> bool {
        let start = self.local.at(0, size);
        // SAFETY: the region is this side's and stays alive; `many` waits for the completion of every command, and no other
        // code uses the memory.
        let local = unsafe { LocalRange::new(start, size) };
        let remote = self
            .key
            .slice(0, size as u64)
            .expect("the window is as long as the longest command");
        let (to, token) = (WorldRank(remote.owner), CommandToken(0));
        let command = if puts {
            DriverCommand::Put {
                to,
                from: local,
                into: remote,
                count: None,
                token,
            }
        } else {
            DriverCommand::Get {
                to,
                from: remote,
                into: local,
                token,
            }
        };
        matches!(self.driver.post(command), PostResult::Posted)
    }
}

/// Counts completions.
#[derive(Debug, Default)]
struct CountingSink {
    left: u32,
}

impl Sink for CountingSink {
    fn message(&mut self, _: WorldRank, _: &[u8], _: PayloadView<'_>) {}

    fn complete(&mut self, _: CommandToken) {
        self.left -= 1;
    }

    fn fetched(&mut self, _: CommandToken, _: u64) {}

    fn failed(&mut self, _: CommandToken, why: CommandFailure) {
        panic!("the driver failed a command: {why:?}");
    }

    fn reached(&mut self, _: CommandToken) {
        panic!("nothing is watched here");
    }

    fn triggered(&mut self, _: CommandToken) {
        panic!("no list is posted here");
    }

    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        panic!("rank {} has left ({how:?}) during the measurement", peer.0);
    }
}

/// Formats a key as a word that the launcher can carry.
fn words(key: &RemoteRegion) -> String {
    let RemoteRegion {
        kind,
        owner,
        id,
        generation,
        whole,
        base,
        len,
    } = key;
    format!("{kind}:{owner}:{id}:{generation}:{whole}:{base}:{len}")
}

fn key_of(text: &str) -> Option<RemoteRegion> {
    let mut parts = text.split(':');
    let mut short = || parts.next()?.parse::<u32>().ok();
    let (kind, owner, id, generation) = (short()?, short()?, short()?, short()?);
    let mut long = || parts.next()?.parse::<u64>().ok();
    let (whole, base, len) = (long()?, long()?, long()?);
    Some(RemoteRegion {
        kind,
        owner,
        id,
        generation,
        whole,
        base,
        len,
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn lossy(count: usize) -> f64 {
    count as f64
}

const WINDOW: u32 = 64;
const BUDGET: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_launcher() {
        let key = RemoteRegion {
            kind: 1,
            owner: 2,
            id: 3,
            generation: 4,
            whole: 5,
            base: 6,
            len: u64::MAX,
        };
        assert_eq!(key_of(&words(&key)), Some(key));
        assert_eq!(key_of("1:2:3"), None);
    }
}
