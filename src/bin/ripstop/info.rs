//! `ripstop info`: what a rank started here and now would use, and why.

use std::{
    error::Error,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use ripstop::{
    Runtime,
    boot::{self, Boot, Environment},
    collectives::{
        choose::{Algorithm, Shape, Table},
        cost::Machine,
        machine_of,
        plan::{
            AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter, Scatter,
        },
        set_for,
    },
    settings::{Footprint, SettingSource, Settings},
};
use ripstop_rt::internal::CommInternals;
use serde_json::{Value, json};

use crate::{
    fabrics::FabricsReport,
    stderr_lines::print_line,
    system_files::MachineFiles,
    topology::{self, NodeTopology},
};

/// Show what a rank would use here, and why: reactor, protocols, memory, settings
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    /// Only the paths of messages, by length
    #[arg(long)]
    protocols: bool,

    /// Only the algorithms of collectives, by length and number of ranks
    #[arg(long)]
    collectives: bool,

    /// The number of ranks that --collectives is about [default: those of this job]
    #[arg(long, value_name = "N", requires = "collectives", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// Only the memory that peers take
    #[arg(long)]
    memory: bool,

    /// Only the settings: name, value, where it came from, range, meaning
    #[arg(long)]
    settings: bool,

    /// Only the fabrics: those that can run here, and why the others cannot
    #[arg(long)]
    fabrics: bool,

    /// Only the machine: packages, memory, caches, cores, adapters, and the ranks of this job where they may run
    #[arg(long, conflicts_with_all = ["protocols", "collectives", "memory", "settings", "fabrics"])]
    topology: bool,

    /// Draw the topology into a file
    #[arg(long, value_name = "FILE", requires = "topology")]
    svg: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl InfoArgs {
    const fn wants_all(&self) -> bool {
        !(self.protocols || self.collectives || self.memory || self.settings || self.fabrics)
    }

    /// Returns true if the report needs no runtime, so that it also appears where none can start.
    const fn wants_fabrics_only(&self) -> bool {
        self.fabrics && !(self.protocols || self.collectives || self.memory || self.settings)
    }
}

/// Prints the report; of several ranks only the first one prints.
pub(crate) fn run(args: &InfoArgs) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line("ripstop info", &error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn show(args: &InfoArgs) -> Result<(), Box<dyn Error>> {
    let boot = boot::discover(&Environment::of_process());
    if args.topology {
        return show_topology(args, boot.ok());
    }
    if args.wants_fabrics_only() {
        return show_fabrics(args, boot.ok());
    }
    let boot = boot?;
    let (rank, found) = (boot.rank, boot.found);
    let runtime = Runtime::builder().boot(boot).init()?;
    if rank == 0 {
        let facts = InfoReport::of(&runtime, found);
        let text = if args.json {
            facts.json(args).to_string()
        } else {
            facts.text(args)
        };
        writeln!(io::stdout().lock(), "{}", text.trim_end())?;
    }
    runtime.close()?;
    Ok(())
}

/// Prints which fabrics can run here, without a runtime. The job only says which rank prints.
fn show_fabrics(args: &InfoArgs, boot: Option<Boot>) -> Result<(), Box<dyn Error>> {
    if boot.as_ref().is_none_or(|boot| boot.rank == 0) {
        let settings = Settings::from_environment()?;
        let text = if args.json {
            let mut facts = serde_json::Map::new();
            FabricsReport::of(&settings).add_json(&mut facts);
            Value::Object(facts).to_string()
        } else {
            FabricsReport::of(&settings).text()
        };
        writeln!(io::stdout().lock(), "{}", text.trim_end())?;
    }
    match boot {
        Some(mut boot) => Ok(boot.exchange.finalize()?),
        None => Ok(()),
    }
}

/// Prints the parts of this machine, without a runtime. In a job, the first rank prints, and shows the ranks of its node.
fn show_topology(args: &InfoArgs, mut boot: Option<Boot>) -> Result<(), Box<dyn Error>> {
    let ranks = match &mut boot {
        Some(boot) if boot.size > 1 => topology::ranks_of_node(boot, &MachineFiles)?,
        _ => Vec::new(),
    };
    if boot.as_ref().is_none_or(|boot| boot.rank == 0) {
        let topology = NodeTopology::observe(&MachineFiles, ranks);
        let text = if args.json {
            topology.json().to_string()
        } else {
            topology.text()
        };
        if let Some(path) = &args.svg {
            let written = std::fs::write(path, topology.svg());
            written.map_err(|why| format!("--svg {}: {why}", path.display()))?;
        }
        writeln!(io::stdout().lock(), "{}", text.trim_end())?;
    }
    match boot {
        Some(mut boot) => Ok(boot.exchange.finalize()?),
        None => Ok(()),
    }
}

/// The report.
struct InfoReport<'a> {
    runtime: &'a Runtime,
    found: &'static str,
    ranks: usize,
    uring: String,
    of_process: Settings,
    footprint: Footprint,
}

impl<'a> InfoReport<'a> {
    fn of(runtime: &'a Runtime, found: &'static str) -> Self {
        // The runtime has read these variables already, so they are valid.
        let settings = Settings::from_environment().unwrap_or_default();
        Self {
            runtime,
            found,
            ranks: runtime.world().size(),
            uring: uring(runtime),
            footprint: Footprint::new(&settings),
            of_process: settings,
        }
    }

    fn text(&self, args: &InfoArgs) -> String {
        // Checks load libraries, so there are none if they are not shown.
        let wants_fabrics = args.fabrics || args.wants_all();
        let shown = wants_fabrics.then(|| FabricsReport::of(&self.of_process).text());
        let parts = [
            (args.wants_all(), self.summary()),
            (wants_fabrics, shown.unwrap_or_default()),
            (args.protocols || args.wants_all(), self.protocols()),
            (args.collectives, self.collectives(args.ranks)),
            (args.memory || args.wants_all(), self.memory()),
            (args.settings || args.wants_all(), self.settings()),
        ];
        let wanted = parts.into_iter().filter(|(wanted, _)| *wanted);
        wanted.map(|(_, text)| text + "\n").collect()
    }

    fn summary(&self) -> String {
        let choices = self.runtime.choices();
        let single_copy = choices.single_copy.as_ref().map_or_else(
            |why| format!("no: {why}; long messages are copied twice"),
            |()| match choices.by_processor {
                false => "yes, by the adapter".to_owned(),
                true => "yes, by process_vm_readv and process_vm_writev".to_owned(),
            },
        );
        let launcher = match self.found {
            "singleton" => "none: this process is the only rank".to_owned(),
            found => format!("{found}, {} ranks", self.ranks),
        };
        let rows = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("launcher", launcher),
            ("fabric", choices.fabric_why.clone()),
            ("reactor", choices.reactor_why.clone()),
            ("io_uring", self.uring.clone()),
            ("single copy", single_copy),
        ];
        rows.iter()
            .map(|(name, value)| format!("{name:<12} {value}\n"))
            .collect()
    }

    fn protocols(&self) -> String {
        format!(
            "How messages travel\n{}\n",
            self.runtime.choices().paths.trim_end()
        )
    }

    /// Lists, for each collective, the algorithm that is set, or the cheapest ones, each with the longest message in bytes.
    fn collectives(&self, ranks: Option<u32>) -> String {
        let world = self.runtime.world();
        let ranks = ranks.map_or(self.ranks, |ranks| ranks as usize);
        // If all ranks are on one node, more ranks would be too.
        let per_node = Some(world.per_node()).filter(|&some| some < self.ranks);
        let per_node = per_node.map_or(ranks, |some| some.min(ranks));
        let machine = machine_of(world.choices(), per_node);
        let shape = Shape {
            mapped: (2..ranks).contains(&per_node),
            ..Shape::of(ranks)
        };
        let settings = world.settings();
        let tables = [
            table::<Barrier>(settings, shape, &machine),
            table::<Bcast>(settings, shape, &machine),
            table::<Gather>(settings, shape, &machine),
            table::<Scatter>(settings, shape, &machine),
            table::<AllGather>(settings, shape, &machine),
            table::<AllToAll>(settings, shape, &machine),
            table::<Reduce>(settings, shape, &machine),
            table::<AllReduce>(settings, shape, &machine),
            table::<ReduceScatter>(settings, shape, &machine),
        ];
        format!(
            "Collectives of {ranks} ranks, by the bytes of the buffer or of one block\n{TABLES}{}",
            tables.concat()
        )
    }

    fn memory(&self) -> String {
        let Footprint {
            per_peer, per_pair, ..
        } = self.footprint;
        let mut text = format!(
            "Memory in bytes\n{per_peer:>10}  for each peer that was never talked to\n\
             {per_pair:>10}  for each pair of ranks in contact, on both sides together\n"
        );
        for pool in &self.footprint.pools {
            let max = pool.max.map_or_else(
                || "growing with their number".to_owned(),
                |max| format!("at most {max}"),
            );
            text += &format!(
                "{:>10}  {}, shared by all peers; {max}\n",
                pool.first, pool.name
            );
        }
        text
    }

    fn settings(&self) -> String {
        let mut text = "Settings\n".to_owned();
        for row in self.runtime.settings() {
            text += &format!(
                "{:<26} {:<10} {:<12} {}\n{:26} {}\n",
                row.name,
                row.value,
                source(row.source),
                row.range,
                "",
                row.meaning
            );
        }
        text
    }

    fn json(&self, args: &InfoArgs) -> Value {
        let mut facts = serde_json::Map::new();
        let all = args.wants_all();
        if all {
            let choices = self.runtime.choices();
            facts.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
            facts.insert("launcher".to_owned(), self.found.into());
            facts.insert("ranks".to_owned(), self.ranks.into());
            facts.insert("fabric".to_owned(), choices.fabric.into());
            facts.insert("fabric_why".to_owned(), choices.fabric_why.into());
            facts.insert("reactor".to_owned(), choices.reactor.into());
            facts.insert("reactor_why".to_owned(), choices.reactor_why.into());
            facts.insert("io_uring".to_owned(), self.uring.clone().into());
            facts.insert("single_copy".to_owned(), choices.single_copy.is_ok().into());
            facts.insert(
                "single_copy_why_not".to_owned(),
                choices.single_copy.err().into(),
            );
        }
        if all || args.fabrics {
            FabricsReport::of(&self.of_process).add_json(&mut facts);
        }
        if all || args.protocols {
            facts.insert("paths".to_owned(), self.runtime.choices().paths.into());
        }
        if args.collectives {
            let text = self.collectives(args.ranks);
            facts.insert("collectives".to_owned(), text.into());
        }
        if all || args.memory {
            facts.insert("memory".to_owned(), self.memory_json());
        }
        if all || args.settings {
            facts.insert("settings".to_owned(), self.settings_json());
        }
        Value::Object(facts)
    }

    fn memory_json(&self) -> Value {
        let pools: Vec<_> = self
            .footprint
            .pools
            .iter()
            .map(|pool| json!({ "name": pool.name, "first_bytes": pool.first, "max_bytes": pool.max }))
            .collect();
        json!({
            "per_peer_never_talked_to_bytes": self.footprint.per_peer,
            "per_pair_in_contact_bytes": self.footprint.per_pair,
            "shared_pools": pools,
        })
    }

    fn settings_json(&self) -> Value {
        let rows = self.runtime.settings().into_iter().map(|row| {
            json!({
                "name": row.name,
                "value": row.value,
                "source": source(row.source),
                "range": row.range,
                "meaning": row.meaning,
            })
        });
        Value::Array(rows.collect())
    }
}

/// Returns the algorithm that is set, or the one that is chosen otherwise.
fn table<A: Algorithm>(settings: &Settings, shape: Shape, machine: &Machine) -> String {
    match set_for::<A>(settings, &shape, machine) {
        Some(set) => format!("{}\n{:>14}  {set}  (set)\n", A::COLLECTIVE, "any length"),
        None => Table::<A>::new(shape, machine).to_string(),
    }
}

/// Describes whether io_uring works here; if another reactor is in use, tries io_uring.
fn uring(runtime: &Runtime) -> String {
    let choices = runtime.choices();
    if choices.reactor == "uring" {
        return "works".to_owned();
    }
    let alone = boot::discover(&Environment::default());
    let tried = alone.map(|boot| {
        let builder = Runtime::builder().boot(boot);
        builder.set("RIPSTOP_REACTOR", "uring").init()
    });
    match tried {
        Ok(Ok(_)) => "works, and is not used".to_owned(),
        Ok(Err(error)) => format!("does not work: {error}"),
        Err(error) => format!("not tried: {error}"),
    }
}

fn source(source: SettingSource) -> &'static str {
    match source {
        SettingSource::Default => "default",
        SettingSource::Environment => "environment",
        SettingSource::Builder => "builder",
        _ => "elsewhere",
    }
}

/// The note below tables in which one line serves many lengths.
const TABLES: &str = "\
The tables hold for operators that commute and for blocks of equal length; other calls may use other algorithms. A call also uses
one that is cheaper by less than 5 %, for which the tables have no line.
";

const EXAMPLES: &str = "\
Examples:
  ripstop info
  ripstop info --settings
  ripstop info --fabrics
  ripstop info --collectives --ranks 64
  RIPSTOP_REACTOR=epoll ripstop info --json
  ripstop run -n 2 -- ripstop info --protocols
  ripstop run -n 4 -- ripstop info --topology --svg machine.svg";

#[cfg(test)]
mod tests {
    use super::{Environment, InfoReport, Runtime, boot};

    #[test]
    fn an_algorithm_that_is_set_is_shown_as_that_and_no_other_is() {
        let shown = |set: &[(&str, &str)]| {
            let boot = boot::discover(&Environment::default()).unwrap();
            let builder = Runtime::builder().boot(boot);
            let with =
                |builder: ripstop::Builder, (name, value): &(&str, &str)| builder.set(name, value);
            let runtime = set.iter().fold(builder, with).init().unwrap();
            let text = InfoReport::of(&runtime, "singleton").collectives(Some(8));
            runtime.close().unwrap();
            text
        };
        let text = shown(&[
            ("RIPSTOP_ALLREDUCE", "ring"),
            ("RIPSTOP_BARRIER", "leaders"),
        ]);
        let of = text.split_once("all_reduce\n").unwrap().1;
        let of = of.split_once("reduce_scatter\n").unwrap().0;
        assert_eq!(
            of.split_whitespace().collect::<Vec<_>>(),
            ["any", "length", "ring", "(set)"]
        );
        // There are no leaders on one node, so a setting of them does not apply.
        assert_eq!(text.matches("(set)").count(), 1, "{text}");
        assert!(!shown(&[]).contains("(set)"));
        assert!(text.contains("commute") && text.contains("5 %"), "{text}");
    }
}
