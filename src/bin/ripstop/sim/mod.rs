//! `ripstop sim`: a scenario on a simulated cluster.
//!
//! The ranks run the same engine and protocols as real ones; only the driver, the clock and the executor differ. All figures are
//! virtual time, and may be compared with each other; only a calibrated model predicts a machine.

mod options;
mod plot;
mod scenario;
mod traffic;

use std::{error::Error, fs, io::Write, path::PathBuf, process::ExitCode, time::Duration};

use ripstop::sim::{Faults, Model, Report, Simulation, Transport};

use self::{
    options::{Assignment, Sweep, assignment, sweep},
    plot::Plot,
    scenario::{Figures, Scenario, Work},
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
    let lines = args.ranks.0.len() * usize::try_from(args.runs)?;
    let mut table = Table::new(0, args.json, lines);
    let mut plot = Plot::new(args.title(), "ranks");
    for &ranks in &args.ranks.0 {
        for seed in args.seed..args.seed.saturating_add(args.runs) {
            table.announce(format!("{} ranks, seed {seed}", ranks));
            let job = simulation.clone().ranks(ranks).seed(seed);
            let outcome = args.once(job, seed);
            let (report, figures) =
                outcome.map_err(|why| format!("{why}\nreplay: {}", args.replay(ranks, seed)))?;
            let at = f64::from(ranks);
            if let Some(&(_, unit, value)) = figures.first() {
                plot.point(unit, at, value);
            }
            plot.point("messages per rank", at, report.stats.messages as f64 / at);
            plot.point(
                "KiB of state per rank",
                at,
                report.memory.bytes as f64 / 1024.0 / at,
            );
            table.print(args.row(ranks, seed, &report, &figures))?;
        }
    }
    if let Some(path) = &args.svg {
        fs::write(path, plot.svg()).map_err(|why| format!("--svg {}: {why}", path.display()))?;
    }
    Ok(())
}

impl Args {
    fn simulation(&self) -> Result<Simulation, Trouble> {
        let mut simulation = Simulation::new(1);
        simulation = match &self.model {
            Some(path) => simulation.model(Model::from_toml(&read("--model", path)?)?),
            None => simulation.fabric(&self.preset),
        };
        if let Some(faults) = &self.faults {
            simulation = if faults.contains('=') {
                simulation.faults(faults)
            } else {
                simulation.fault_plan(Faults::from_toml(&read("--faults", &faults.into())?)?)
            };
        }
        if self.datagrams {
            simulation = simulation.transport(Transport::Datagram);
        }
        for Assignment { name, value } in &self.settings {
            simulation = simulation.set(name, value);
        }
        Ok(simulation)
    }

    fn once(
        &self,
        simulation: Simulation,
        seed: u64,
    ) -> Result<(Report<ripstop::Result<Figures>>, Figures), Trouble> {
        let work = Work {
            size: self.size,
            iters: self.iters,
            seed,
        };
        let scenario = self.scenario;
        let mut report = simulation.run(move |world| scenario.start(world, work))?;
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

    fn row<T>(&self, ranks: u32, seed: u64, report: &Report<T>, figures: &Figures) -> Row {
        let stats = &report.stats;
        let each = |total: u64| total as f64 / f64::from(ranks);
        let mut row = Row::new(self.scenario.name())
            .label("ranks", ranks)
            .label("seed", seed)
            .figure("virtual_us", "virtual µs", micros(report.time));
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
    fn replay(&self, ranks: u32, seed: u64) -> String {
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
        words.extend(self.datagrams.then(|| "--datagrams".to_owned()));
        words.push(format!("--size {} --iters {}", self.size, self.iters));
        let set = |Assignment { name, value }: &Assignment| format!("--set {name}={value}");
        words.extend(self.settings.iter().map(set));
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
  ripstop sim stencil --ranks 512 --faults kill=3@2ms --json
  ripstop sim deadlock --ranks 4

The same seed gives the same digest, on any machine. A run that fails prints the command that repeats it.";
