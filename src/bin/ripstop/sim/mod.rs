//! `ripstop sim`: a scenario on a simulated cluster.
//!
//! The ranks run the same engine and protocols as real ones; only the driver, the clock and the executor differ. All figures are
//! virtual time, and may be compared with each other; only a calibrated model predicts a machine.

mod app_workload;
mod awp;
mod bars;
mod cases;
mod collective;
mod connection_setup;
mod first_iterations;
mod options;
mod overlapped_alltoall;
mod p3dfft;
mod plot;
mod scenario;
mod startup;
#[cfg(test)]
mod tests;
mod traffic;

use std::{
    collections::BTreeMap,
    error::Error,
    fs, mem,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use ripstop::sim::{Faults, Model, Report, SimManager, Simulation, Transport};

use self::{
    app_workload::AppWorkload,
    bars::BarChart,
    cases::ScenarioCase,
    connection_setup::NodeThreads,
    options::{RankSweep, SettingAssignment, assignment, sweep},
    plot::LinePlot,
    scenario::{RankFigures, ScenarioKind, ScenarioWork},
};
use crate::{
    perf::report::{ResultReport as Table, ResultRow},
    stderr_lines::print_line,
};

/// Run a scenario on a simulated cluster: thousands of ranks, faults from a seed, virtual time
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// What the ranks do
    #[arg(value_enum)]
    scenario: ScenarioKind,

    /// How many ranks; `2..16384` runs 2, 4, 8 and so on
    #[arg(long, value_name = "N", value_parser = sweep, default_value = "64")]
    ranks: RankSweep,

    /// The seed of all random numbers
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// Runs with seeds S, S+1 and so on
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// The fabric: ideal, shm, seastar, bxi, bxi-4, sdr, qdr, hdr, ethernet, ethernet-25 or ethernet-100
    #[arg(long, value_name = "P", default_value = "ideal")]
    preset: String,

    /// The fabric, from a TOML file
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    model: Option<PathBuf>,

    /// Faults: a TOML file, or in short `drop=0.3,kill=3@2ms`
    #[arg(long, value_name = "FILE")]
    faults: Option<String>,

    /// Losses reach the runtime, instead of being hidden by the simulated NIC
    #[arg(long)]
    datagrams: bool,

    /// Length of a message in bytes
    #[arg(long, value_name = "BYTES", value_parser = options::bytes, default_value = "8")]
    size: usize,

    /// Hash messages of BYTES or more instead of copying them, so that they may be longer than the memory (pingpong)
    #[arg(long, value_name = "BYTES", value_parser = options::bytes)]
    hash_from: Option<usize>,

    /// Ranks learn each other's addresses through the process manager before they begin
    #[arg(long)]
    from_start: bool,

    /// Queue pairs that a node can have at a time [default: as many as are needed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    queue_pairs: Option<u32>,

    /// Threads of a node that make queue pairs, where ranks do not each make their own
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connect_threads: u32,

    /// Ranks of a node, instead of the fabric's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    per_node: Option<u32>,

    /// Cells of a rank (awp) or points of the box (p3dfft) in each dimension
    #[arg(long, value_name = "N", value_parser = options::edge)]
    edge: Option<usize>,

    /// Times of the computation, measured on a machine, in ns: a velocity cell, a stress cell, a ghost value
    /// (awp); a point of the box transformed along x, y, z (p3dfft)
    #[arg(long, value_name = "A,B,C", value_parser = app_workload::costs)]
    costs: Option<app_workload::WorkCosts>,

    /// Variables that are transformed at a time (p3dfft)
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    vars: u64,

    /// Chunks that each variable is transformed in, up to the planes of a rank; `blocking` takes one (p3dfft)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    chunks: u64,

    /// How many times as slow the simulated processors are as the one that was measured
    #[arg(long, value_name = "F", value_parser = app_workload::factor, default_value = "1")]
    slower: f64,

    /// Only these ways of a scenario that runs in several
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    way: Vec<String>,

    /// How often each rank repeats the operation of the scenario
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iters: u64,

    /// A setting of all ranks, such as RIPSTOP_EAGER_MAX=4096; settings of the environment are ignored
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    settings: Vec<SettingAssignment>,

    /// Draw the scenario's first figure, messages and memory over the number of ranks
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

/// An error of any kind that ends a run.
type ScenarioError = Box<dyn Error>;

/// Runs every seed on every number of ranks.
pub(crate) fn run(args: &SimArgs) -> ExitCode {
    match simulate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            print_line("ripstop sim", &trouble.to_string());
            ExitCode::FAILURE
        }
    }
}

fn simulate(args: &SimArgs) -> Result<(), ScenarioError> {
    let simulation = args.simulation()?;
    let cases = args.cases()?;
    args.check_svg()?;
    let mut table = Table::new(0, args.json, cases.count());
    let mut drawing = ScenarioPicture::new(args.title());
    for case in cases.iter() {
        let ScenarioCase { ranks, seed, .. } = case;
        table.announce(format!("{ranks} ranks, seed {seed}"));
        let row = carry_out(args, &simulation, case, &mut drawing);
        table.print(row.map_err(|why| format!("{why}\nreplay: {}", args.replay(case)))?)?;
    }
    if let Some(path) = &args.svg {
        fs::write(path, drawing.svg()).map_err(|why| format!("--svg {}: {why}", path.display()))?;
    }
    Ok(())
}

/// Runs one case: draws it, and returns the row to print.
fn carry_out(
    args: &SimArgs,
    simulation: &Simulation,
    case: ScenarioCase,
    drawing: &mut ScenarioPicture,
) -> Result<ResultRow, ScenarioError> {
    let ScenarioCase { ranks, seed, .. } = case;
    if let Some(queue) = overlapped_alltoall::queue_of(case.way) {
        return overlapped_alltoall::offloaded(args, case, queue, &mut drawing.plot);
    }
    let mut job = simulation.clone().ranks(ranks).seed(seed);
    if overlapped_alltoall::is_by_host(case.way) || args.scenario.goes_by_messages(case.way) {
        job = job.set("RIPSTOP_COLLECTIVES", "messages");
    }
    let way = args.scenario.resolve_way(&job, case.way);
    let job = args.scenario.configure_job(job, way, args.node(ranks)?);
    let (report, mut figures) = args.once(job, ScenarioCase { way, ..case })?;
    if let Some((whole, parts)) = args.scenario.compared() {
        drawing.compare(case, whole, parts, &mut figures);
    } else {
        drawing.draw(case, &report, &figures);
    }
    Ok(args.row(case, &report, &figures))
}

/// Returns what the surviving ranks found. Killed ranks are left out, and failures that they caused are tolerated.
///
/// # Errors
/// Any other error of a rank.
fn survivors<T>(
    scenario: ScenarioKind,
    report: &mut Report<ripstop::Result<T>>,
) -> Result<Vec<T>, ScenarioError> {
    let mut found = Vec::new();
    for (rank, result) in mem::take(&mut report.results).into_iter().enumerate() {
        match result {
            Some(Ok(its)) => found.push(its),
            Some(Err(error)) if scenario.tolerates(&error) => {}
            Some(Err(error)) => return Err(format!("rank {rank}: {error}").into()),
            None => {} // killed, as the faults demand
        }
    }
    Ok(found)
}

/// The picture of all runs together.
struct ScenarioPicture {
    plot: LinePlot,
    bars: BarChart,
    /// Time of the first way, by ranks and seed.
    first: BTreeMap<(u32, u64), f64>,
}

impl ScenarioPicture {
    fn new(title: String) -> Self {
        Self {
            plot: LinePlot::new(title.clone(), "ranks"),
            bars: BarChart::new(title),
            first: BTreeMap::new(),
        }
    }

    /// Draws the first figures, and those that all scenarios have, unless a scenario has several ways.
    fn draw<T>(&mut self, case: ScenarioCase, report: &Report<T>, figures: &RankFigures) {
        let at = f64::from(case.ranks);
        // Both suites give the same overlap if the hidden operation takes as long as the computation.
        let drawn = if overlapped_alltoall::is_by_host(case.way) {
            1
        } else {
            DRAWN
        };
        for &(_, unit, value) in figures.iter().take(drawn) {
            let line = format!("{} {unit}", case.way);
            self.plot.point(line.trim_start(), at, value);
        }
        if case.way.is_empty() {
            let kib = report.memory.bytes as f64 / 1024.0;
            let messages = report.stats.messages as f64;
            self.plot.point("messages per rank", at, messages / at);
            self.plot.point("KiB of state per rank", at, kib / at);
        }
    }

    /// Adds a bar of these parts, and a figure: the share of the first way's time that this way saves.
    fn compare(
        &mut self,
        case: ScenarioCase,
        whole: &str,
        parts: &[&'static str],
        figures: &mut RankFigures,
    ) {
        let figure = |name: &str| figures.iter().find(|found| found.0 == name);
        let parts: Vec<_> = parts.iter().filter_map(|part| figure(part)).collect();
        let parts: Vec<_> = parts.iter().map(|part| (part.1, part.2)).collect();
        let name = format!("{} {}", case.way, case.ranks);
        self.bars.bar(name, &parts);
        if let Some(&(_, _, time)) = figure(whole) {
            let first = self.first.entry((case.ranks, case.seed)).or_insert(time);
            let saved = 100.0 * (1.0 - time / *first);
            figures.push(("saved", "saved %", saved));
        }
    }

    fn svg(&self) -> String {
        if self.bars.is_empty() {
            self.plot.svg()
        } else {
            self.bars.svg()
        }
    }
}

/// The most bytes of the blocks of an all-to-all, on all ranks together.
const BLOCKS_MAX: u128 = 8 << 30;
/// Number of figures that are drawn.
const DRAWN: usize = 2;

impl SimArgs {
    fn simulation(&self) -> Result<Simulation, ScenarioError> {
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
        if self.scenario.moves_nothing() {
            simulation = simulation.lengths_only();
        }
        if self.from_start {
            simulation = simulation.from_start();
        }
        if let Some(queue_pairs) = self.queue_pairs {
            simulation = simulation.queue_pairs_max(queue_pairs);
        }
        if self.datagrams {
            simulation = simulation.transport(Transport::Datagram);
        }
        if self.scenario.has_model() {
            simulation = simulation.set("RIPSTOP_COLLECTIVES", "messages");
        }
        for SettingAssignment { name, value } in &self.settings {
            simulation = simulation.set(name, value);
        }
        Ok(simulation)
    }

    fn fabric_model(&self) -> Result<Model, ScenarioError> {
        let mut model = match &self.model {
            Some(path) => Model::from_toml(&read("--model", path)?)?,
            None => Model::preset(&self.preset)?,
        };
        if let Some(ranks) = self.per_node {
            model.node.ranks = ranks;
        }
        Ok(model)
    }

    fn node(&self, ranks: u32) -> Result<NodeThreads, ScenarioError> {
        Ok(NodeThreads {
            ranks: self.fabric_model()?.node.ranks.min(ranks),
            threads: self.connect_threads,
        })
    }

    fn load(&self) -> AppWorkload {
        AppWorkload {
            edge: self.edge,
            costs: self.costs,
            slower: self.slower,
            pieces: [self.vars, self.chunks].map(|n| usize::try_from(n).unwrap_or(1)),
        }
    }

    /// Refuses a picture that cannot be written, before runs that may take hours.
    fn check_svg(&self) -> Result<(), ScenarioError> {
        let above = self.svg.as_deref().and_then(Path::parent);
        let missing = above.filter(|above| !above.as_os_str().is_empty() && !above.is_dir());
        missing.map_or(Ok(()), |above| {
            let above = above.display();
            Err(format!("--svg: there is no directory {above}; make it, or take another").into())
        })
    }

    fn once(
        &self,
        simulation: Simulation,
        case: ScenarioCase,
    ) -> Result<(Report<ripstop::Result<RankFigures>>, RankFigures), ScenarioError> {
        let blocks = 2 * u128::from(case.ranks).pow(2) * self.size as u128;
        if self.scenario.has_blocks() && blocks > BLOCKS_MAX {
            let why = format!(
                "--size: the blocks of {} ranks take {blocks} bytes, but {BLOCKS_MAX}",
                case.ranks
            );
            return Err(
                format!("{why} are the most: choose shorter blocks, or another --way").into(),
            );
        }
        let work = ScenarioWork {
            size: self.size,
            iters: self.iters,
            seed: case.seed,
            way: case.way,
            load: self.load(),
        };
        let mut model = self.fabric_model()?;
        if self.scenario.has_agent(case.way) {
            (model.host.agent, model.host.steals) = (true, true);
        }
        let (scenario, manager) = (self.scenario, SimManager::new(&model));
        let simulation = simulation.model(model);
        let mut report =
            simulation.run(move |world| scenario.start(world, work, manager.clone()))?;
        let found = survivors(scenario, &mut report)?;
        let figures = found.into_iter().flatten().collect();
        Ok((report, figures))
    }

    fn row<T>(&self, case: ScenarioCase, report: &Report<T>, figures: &RankFigures) -> ResultRow {
        let stats = &report.stats;
        let each = |total: u64| total as f64 / f64::from(case.ranks);
        let mut row = ResultRow::new(self.scenario.name())
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
            .field("per_node", self.per_node)
            .field("slower", self.slower)
            .field("messages", stats.messages)
            .field("queue_pairs", stats.queue_pairs)
            .field("evictions", stats.evictions)
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

    /// Returns the command that repeats one run.
    fn replay(&self, case: ScenarioCase) -> String {
        let ScenarioCase { way, ranks, seed } = case;
        let mut words = vec![format!("ripstop sim --ranks {ranks} --seed {seed}")];
        match &self.model {
            Some(path) => words.push(format!("--model '{}'", path.display())),
            None => words.push(format!("--preset {}", self.preset)),
        }
        words.extend(self.per_node.map(|ranks| format!("--per-node {ranks}")));
        words.extend(self.load().command_line_text());
        words.extend(self.queue_pairs.map(|most| format!("--queue-pairs {most}")));
        let threads = self.connect_threads;
        words.extend((threads != 8).then(|| format!("--connect-threads {threads}")));
        words.extend(
            self.faults
                .iter()
                .map(|faults| format!("--faults '{faults}'")),
        );
        words.extend(self.hash_from.map(|bytes| format!("--hash-from {bytes}")));
        words.extend(self.from_start.then(|| "--from-start".to_owned()));
        words.extend(self.datagrams.then(|| "--datagrams".to_owned()));
        words.push(format!("--size {} --iters {}", self.size, self.iters));
        let set =
            |SettingAssignment { name, value }: &SettingAssignment| format!("--set {name}={value}");
        words.extend(self.settings.iter().map(set));
        words.extend((!way.is_empty()).then(|| format!("--way {way}")));
        words.push(self.scenario.name().to_owned());
        words.join(" ")
    }
}

fn read(option: &str, path: &PathBuf) -> Result<String, ScenarioError> {
    fs::read_to_string(path).map_err(|why| format!("{option} {}: {why}", path.display()).into())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

const EXAMPLES: &str = "\
Examples:
  ripstop sim barrier --ranks 2..16384 --preset bxi --svg barrier.svg
  ripstop sim random --ranks 256 --faults drop=0.3,dup=0.1,reorder=64 --runs 100
  ripstop sim pingpong --ranks 2 --preset bxi-4 --size 4GiB --hash-from 1MiB --iters 1
  ripstop sim stencil --ranks 512 --faults kill=3@2ms --json
  ripstop sim ialltoall --ranks 512 --size 262144 --preset bxi --svg overlap.svg
  ripstop sim awp --ranks 8192 --per-node 16 --preset sdr --slower 20 --iters 3 --svg awp.svg
  ripstop sim p3dfft --ranks 128 --per-node 8 --preset qdr --slower 12 --vars 8 --iters 1 --svg p3dfft.svg
  ripstop sim seven-point --ranks 512 --preset qdr --way naive,hybrid,auto --iters 10
  ripstop sim deadlock --ranks 4

The same seed gives the same digest, on any machine. A run that fails prints the command that repeats it.";
