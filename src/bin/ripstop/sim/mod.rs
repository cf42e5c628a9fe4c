//! `ripstop sim`: a scenario on a simulated cluster.
//!
//! The ranks run the same engine and protocols as real ones; only the driver, the clock and the executor differ. All figures are
//! virtual time, and may be compared with each other; only a calibrated model predicts a machine.

mod collective;
mod contact;
mod options;
mod overlapped;
mod plot;
mod scenario;
mod startup;
#[cfg(test)]
mod tests;
mod traffic;

use std::{error::Error, fs, io::Write, path::PathBuf, process::ExitCode, time::Duration};

use ripstop::sim::{Faults, Model, Report, Simulation, Transport};

use self::{
    options::{Assignment, Sweep, assignment, sweep},
    plot::Plot,
    scenario::{Figures, Scenario, Work},
    startup::Manager,
};
use crate::perf::report::{Report as Table, Row};

/// Run a scenario on a simulated cluster: thousands of ranks, faults from a seed, virtual time
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What the ranks do
    #[arg(value_enum)]
    scenario: Scenario,

    /// How many ranks; `2..16384` runs 2, 4, 8 and so on
    #[arg(long, value_name = "N", value_parser = sweep, default_value = "64")]
    ranks: Sweep,

    /// Where all chance comes from
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// Runs with seeds S, S+1 and so on
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// The fabric: ideal, shm, seastar, bxi, bxi-4, sdr, qdr or hdr
    #[arg(long, value_name = "P", default_value = "ideal")]
    preset: String,

    /// The fabric, from a TOML file
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    model: Option<PathBuf>,

    /// What goes wrong: a TOML file, or in short `drop=0.3,kill=3@2ms`
    #[arg(long, value_name = "FILE")]
    faults: Option<String>,

    /// Losses reach the runtime, instead of being hidden by the simulated NIC
    #[arg(long)]
    datagrams: bool,

    /// Length of a message in bytes
    #[arg(long, value_name = "BYTES", value_parser = options::bytes, default_value = "8")]
    size: usize,

    /// Hash messages of so many bytes on instead of copying them: they may be longer than there is memory (pingpong)
    #[arg(long, value_name = "BYTES", value_parser = options::bytes)]
    hash_from: Option<usize>,

    /// Of a scenario that runs in several ways, this one only
    #[arg(long, value_name = "NAME")]
    way: Option<String>,

    /// How often each rank does it
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iters: u64,

    /// A setting of all ranks, such as RIPSTOP_EAGER_MAX=4096; those of the environment do not hold
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    settings: Vec<Assignment>,

    /// Draw the scenario's first figure, messages and memory over the number of ranks
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

/// Whatever ended a run.
type Trouble = Box<dyn Error>;

/// Runs every seed on every number of ranks.
pub(crate) fn run(args: &Args) -> ExitCode {
    match simulate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            tell(&trouble.to_string());
            ExitCode::FAILURE
        }
    }
}

fn simulate(args: &Args) -> Result<(), Trouble> {
    let simulation = args.simulation()?;
    let cases = args.cases()?;
    let mut table = Table::new(0, args.json, cases.len());
    let mut plot = Plot::new(args.title(), "ranks");
    for case in cases {
        let Case { ranks, seed, .. } = case;
        table.announce(format!("{ranks} ranks, seed {seed}"));
        if let Some(queue) = overlapped::queue_of(case.way) {
            table.print(overlapped::offloaded(args, case, queue, &mut plot)?)?;
            continue;
        }
        let job = simulation.clone().ranks(ranks).seed(seed);
        let outcome = args.once(job, case);
        let (report, figures) =
            outcome.map_err(|why| format!("{why}\nreplay: {}", args.replay(case)))?;
        draw(&mut plot, case, &report, &figures);
        table.print(args.row(case, &report, &figures))?;
    }
    if let Some(path) = &args.svg {
        fs::write(path, plot.svg()).map_err(|why| format!("--svg {}: {why}", path.display()))?;
    }
    Ok(())
}

/// One run.
#[derive(Clone, Copy)]
struct Case {
    way: &'static str,
    ranks: u32,
    seed: u64,
}

/// Its first figures; and what all scenarios have, unless there are several lines of the former.
fn draw<T>(plot: &mut Plot, case: Case, report: &Report<T>, figures: &Figures) {
    let at = f64::from(case.ranks);
    for &(_, unit, value) in figures.iter().take(DRAWN) {
        plot.point(format!("{} {unit}", case.way).trim_start(), at, value);
    }
    if case.way.is_empty() {
        let kib = report.memory.bytes as f64 / 1024.0;
        plot.point("messages per rank", at, report.stats.messages as f64 / at);
        plot.point("KiB of state per rank", at, kib / at);
    }
}

/// The longest messages that are copied, in bytes.
const COPIED_MAX: usize = 1 << 30;
/// Figures of a run that are drawn.
const DRAWN: usize = 2;

impl Args {
    fn simulation(&self) -> Result<Simulation, Trouble> {
        let mut simulation = Simulation::new(1).model(self.fabric_model()?);
        if let Some(faults) = &self.faults {
            simulation = if faults.contains('=') {
                simulation.faults(faults)
            } else {
                simulation.fault_plan(Faults::from_toml(&read("--faults", &faults.into())?)?)
            };
        }
        if let Some(bytes) = self.hash_from {
            simulation = simulation.hash_from(bytes as u64);
        }
        if self.datagrams {
            simulation = simulation.transport(Transport::Datagram);
        }
        for Assignment { name, value } in &self.settings {
            simulation = simulation.set(name, value);
        }
        Ok(simulation)
    }

    fn fabric_model(&self) -> Result<Model, Trouble> {
        Ok(match &self.model {
            Some(path) => Model::from_toml(&read("--model", path)?)?,
            None => Model::preset(&self.preset)?,
        })
    }

    /// All runs, in their order.
    fn cases(&self) -> Result<Vec<Case>, Trouble> {
        if self.size > COPIED_MAX
            && (self.hash_from.is_none() || self.scenario != Scenario::Pingpong)
        {
            return Err("--size: more than 1 GiB need pingpong, and --hash-from".into());
        }
        let ways = self.scenario.ways();
        let wanted = |way: &&str| self.way.as_ref().is_none_or(|wanted| wanted == way);
        let chosen: Vec<&str> = ways.iter().copied().filter(wanted).collect();
        if chosen.is_empty() {
            let name = self.scenario.name();
            return Err(match ways {
                [""] => format!("--way: {name} has only one"),
                _ => format!("--way: those of {name} are {}", ways.join(", ")),
            }
            .into());
        }
        let seeds = self.seed..self.seed.saturating_add(self.runs);
        let mut cases = Vec::new();
        for &ranks in &self.ranks.0 {
            for seed in seeds.clone() {
                cases.extend(chosen.iter().map(|&way| Case { way, ranks, seed }));
            }
        }
        Ok(cases)
    }

    fn once(
        &self,
        simulation: Simulation,
        case: Case,
    ) -> Result<(Report<ripstop::Result<Figures>>, Figures), Trouble> {
        let work = Work {
            size: self.size,
            iters: self.iters,
            seed: case.seed,
            way: case.way,
        };
        let (scenario, manager) = (self.scenario, Manager::new(&self.fabric_model()?));
        let mut report =
            simulation.run(move |world| scenario.start(world, work, manager.clone()))?;
        let mut figures = Figures::new();
        for (rank, result) in report.results.iter_mut().enumerate() {
            match result {
                Some(Ok(found)) => figures.append(found),
                Some(Err(error)) if self.scenario.tolerates(error) => {}
                Some(Err(error)) => return Err(format!("rank {rank}: {error}").into()),
                None => {} // killed, as the faults ask for
            }
        }
        Ok((report, figures))
    }

    fn row<T>(&self, case: Case, report: &Report<T>, figures: &Figures) -> Row {
        let stats = &report.stats;
        let each = |total: u64| total as f64 / f64::from(case.ranks);
        let mut row = Row::new(self.scenario.name())
            .label("ranks", case.ranks)
            .label("seed", case.seed);
        if !case.way.is_empty() {
            row = row.label("way", case.way);
        }
        row = row.figure("virtual_us", "virtual µs", micros(report.time));
        for &(name, unit, value) in figures {
            row = row.figure(name, unit, value);
        }
        row.figure("messages_per_rank", "messages/rank", each(stats.messages))
            .figure("bytes_per_rank", "bytes/rank", each(stats.bytes))
            .figure(
                "state_bytes_per_rank",
                "state/rank",
                each(report.memory.bytes),
            )
            .field("state_bytes_per_peer", report.memory.bytes_per_peer())
            .field("preset", self.fabric())
            .field("messages", stats.messages)
            .field("queue_pairs", stats.queue_pairs)
            .field("drops", stats.drops)
            .field("duplicates", stats.duplicates)
            .field("retransmissions", stats.retransmissions)
            .label("digest", format!("{:016x}", report.digest))
    }

    fn fabric(&self) -> String {
        match &self.model {
            Some(path) => path.display().to_string(),
            None => self.preset.clone(),
        }
    }

    fn title(&self) -> String {
        format!("{} on {}", self.scenario.name(), self.fabric())
    }

    /// The command that repeats one run.
    fn replay(&self, case: Case) -> String {
        let Case { way, ranks, seed } = case;
        let mut words = vec![format!("ripstop sim --ranks {ranks} --seed {seed}")];
        match &self.model {
            Some(path) => words.push(format!("--model '{}'", path.display())),
            None => words.push(format!("--preset {}", self.preset)),
        }
        words.extend(
            self.faults
                .iter()
                .map(|faults| format!("--faults '{faults}'")),
        );
        words.extend(self.hash_from.map(|bytes| format!("--hash-from {bytes}")));
        words.extend(self.datagrams.then(|| "--datagrams".to_owned()));
        words.push(format!("--size {} --iters {}", self.size, self.iters));
        let set = |Assignment { name, value }: &Assignment| format!("--set {name}={value}");
        words.extend(self.settings.iter().map(set));
        words.extend((!way.is_empty()).then(|| format!("--way {way}")));
        words.push(self.scenario.name().to_owned());
        words.join(" ")
    }
}

fn read(option: &str, path: &PathBuf) -> Result<String, Trouble> {
    fs::read_to_string(path).map_err(|why| format!("{option} {}: {why}", path.display()).into())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn tell(text: &str) {
    // That nobody reads it changes nothing.
    let _ = writeln!(std::io::stderr().lock(), "ripstop sim: {text}");
}

const EXAMPLES: &str = "\
Examples:
  ripstop sim barrier --ranks 2..16384 --preset bxi --svg barrier.svg
  ripstop sim random --ranks 256 --faults drop=0.3,dup=0.1,reorder=64 --runs 100
  ripstop sim pingpong --ranks 2 --preset bxi-4 --size 4GiB --hash-from 1MiB --iters 1
  ripstop sim stencil --ranks 512 --faults kill=3@2ms --json
  ripstop sim ialltoall --ranks 512 --size 262144 --preset bxi --svg overlap.svg
  ripstop sim deadlock --ranks 4

The same seed gives the same digest, on any machine. A run that fails prints the command that repeats it.";
