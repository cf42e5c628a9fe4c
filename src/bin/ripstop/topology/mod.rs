//! `ripstop info --topology`: packages, memory, caches, cores and adapters of this machine, and the ranks where they run.

mod picture;

use std::collections::BTreeMap;

use ripstop::boot::{Boot, BootError};
use serde_json::{Value, json};

use crate::system_files::{SystemFiles, allowed_processors, listed_numbers, number, number_list};

/// Learns, together with all ranks of the job, which processors the ranks of this node may use.
///
/// # Errors
/// The launcher's error.
pub(crate) fn ranks_of_node(
    boot: &mut Boot,
    files: &dyn SystemFiles,
) -> Result<Vec<PlacedRank>, BootError> {
    // A value in the exchange is not empty, and "-" is a list without numbers.
    let own = Some(number_list(&allowed_processors(files)));
    let own = own.filter(|list| !list.is_empty());
    boot.exchange
        .put(&key(boot.rank), own.as_deref().unwrap_or("-"))?;
    boot.exchange.fence()?;
    let mut ranks = Vec::new();
    for &rank in &boot.node.ranks {
        let list = boot.exchange.get(rank, &key(rank))?.unwrap_or_default();
        ranks.push(PlacedRank {
            rank,
            processors: listed_numbers(&list),
        });
    }
    Ok(ranks)
}

/// Returns the key of a rank's processors. Launchers have one table for all ranks, so it names the rank.
fn key(rank: u32) -> String {
    format!("processors-{rank}")
}

/// The parts of a machine that have processors, and the adapters close to them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTopology {
    packages: Vec<ProcessorPackage>,
    /// Adapters whose place the kernel does not know.
    adapters: Vec<String>,
    ranks: Vec<PlacedRank>,
}

/// A processor package, also called a socket.
#[derive(Debug, PartialEq, Eq)]
struct ProcessorPackage {
    number: u32,
    domains: Vec<MemoryDomain>,
}

/// Processors with memory of their own, also called a NUMA node.
#[derive(Debug, PartialEq, Eq)]
struct MemoryDomain {
    number: u32,
    memory_mib: Option<u64>,
    adapters: Vec<String>,
    caches: Vec<SharedCache>,
}

/// Cores that share a last-level cache.
#[derive(Debug, PartialEq, Eq)]
struct SharedCache {
    /// The cache's level and size, such as `L3 32 MiB`; empty if the kernel does not tell.
    name: String,
    /// The processors of each core.
    cores: Vec<Vec<u32>>,
}

/// A rank of this machine, and the processors that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedRank {
    pub(crate) rank: u32,
    pub(crate) processors: Vec<u32>,
}

/// The processors of each core, by the first processor of the last-level cache and its name.
type CoresOfCaches = BTreeMap<(u32, String), Vec<Vec<u32>>>;

/// Where one processor is.
struct ProcessorPlace {
    package: u32,
    domain: u32,
    /// The first processor with the same last-level cache, and the name of that cache.
    cache: (u32, String),
    /// Processors of the same core.
    core: Vec<u32>,
}

impl NodeTopology {
    pub(crate) fn observe(files: &dyn SystemFiles, ranks: Vec<PlacedRank>) -> Self {
        let mut adapters = adapters(files);
        let domains = domains(files);
        let online = files.text(&format!("{CPUS}/online")).unwrap_or_default();
        let online = listed_numbers(&online);
        // Package, domain, cache and core, each in the order of its number.
        let mut tree: BTreeMap<u32, BTreeMap<u32, CoresOfCaches>> = BTreeMap::new();
        for &cpu in &online {
            let place = ProcessorPlace::of(files, cpu, &domains, &online);
            if place.core.first() == Some(&cpu) {
                let domains = tree.entry(place.package).or_default();
                let caches = domains.entry(place.domain).or_default();
                caches.entry(place.cache).or_default().push(place.core);
            }
        }
        let packages = tree.into_iter().map(|(number, domains)| ProcessorPackage {
            number,
            domains: domains
                .into_iter()
                .map(|(number, caches)| MemoryDomain {
                    number,
                    memory_mib: memory_mib(files, number),
                    adapters: adapters.remove(&Some(number)).unwrap_or_default(),
                    caches: caches
                        .into_iter()
                        .map(|((_, name), cores)| SharedCache { name, cores })
                        .collect(),
                })
                .collect(),
        });
        Self {
            packages: packages.collect(),
            adapters: adapters.into_values().flatten().collect(),
            ranks,
        }
    }

    /// Returns a line for each part, indented below the part that it belongs to.
    pub(crate) fn text(&self) -> String {
        let mut text = "Topology\n".to_owned();
        for package in &self.packages {
            text += &format!("package {}\n", package.number);
            for domain in &package.domains {
                text += &format!("  {}\n", domain.title());
                for cache in &domain.caches {
                    let cpus = number_list(&cache.processors());
                    text += &format!("    {}processors {cpus}\n", cache.title());
                    for (placed, own) in self.ranks_in(cache) {
                        text += &format!("      rank {} on {}\n", placed.rank, number_list(&own));
                    }
                }
            }
        }
        if !self.adapters.is_empty() {
            text += &format!(
                "adapters in no place that is known: {}\n",
                self.adapters.join(", ")
            );
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let cache = |cache: &SharedCache| json!({ "cache": cache.name, "cores": cache.cores });
        let domain = |domain: &MemoryDomain| {
            json!({
                "numa_node": domain.number,
                "memory_mib": domain.memory_mib,
                "adapters": domain.adapters,
                "caches": domain.caches.iter().map(cache).collect::<Vec<_>>(),
            })
        };
        let package = |package: &ProcessorPackage| {
            let domains: Vec<_> = package.domains.iter().map(domain).collect();
            json!({ "package": package.number, "numa_nodes": domains })
        };
        let rank =
            |placed: &PlacedRank| json!({ "rank": placed.rank, "processors": placed.processors });
        json!({
            "packages": self.packages.iter().map(package).collect::<Vec<_>>(),
            "adapters": self.adapters,
            "ranks": self.ranks.iter().map(rank).collect::<Vec<_>>(),
        })
    }

    /// Returns a picture as SVG.
    pub(crate) fn svg(&self) -> String {
        picture::draw(self)
    }

    /// Returns the ranks that may use some of the processors, each with these.
    fn ranks_in<'a>(
        &'a self,
        cache: &SharedCache,
    ) -> impl Iterator<Item = (&'a PlacedRank, Vec<u32>)> {
        let processors = cache.processors();
        self.ranks.iter().filter_map(move |placed| {
            let own = placed.processors.iter().copied();
            let own: Vec<u32> = own.filter(|cpu| processors.contains(cpu)).collect();
            (!own.is_empty()).then_some((placed, own))
        })
    }
}

impl MemoryDomain {
    fn title(&self) -> String {
        let memory = self.memory_mib.map(|mib| format!("{mib} MiB"));
        let parts: Vec<String> = memory
            .into_iter()
            .chain(self.adapters.iter().cloned())
            .collect();
        match parts.len() {
            0 => format!("NUMA node {}", self.number),
            _ => format!("NUMA node {}: {}", self.number, parts.join(", ")),
        }
    }
}

impl SharedCache {
    fn processors(&self) -> Vec<u32> {
        let mut processors: Vec<u32> = self.cores.iter().flatten().copied().collect();
        processors.sort_unstable();
        processors
    }

    fn title(&self) -> String {
        let cores = match self.cores.len() {
            1 => "1 core".to_owned(),
            some => format!("{some} cores"),
        };
        if self.name.is_empty() {
            return format!("{cores}, ");
        }
        format!("{}: {cores}, ", self.name)
    }
}

impl ProcessorPlace {
    fn of(
        files: &dyn SystemFiles,
        cpu: u32,
        domains: &BTreeMap<u32, Vec<u32>>,
        online: &[u32],
    ) -> Self {
        let text = |what: &str| files.text(&format!("{CPUS}/cpu{cpu}/{what}"));
        let core = text("topology/thread_siblings_list").map(|list| listed_numbers(&list));
        let core = core.map(|core| {
            core.into_iter()
                .filter(|cpu| online.contains(cpu))
                .collect()
        });
        let mut with_memory = domains.iter().filter(|(_, cpus)| cpus.contains(&cpu));
        Self {
            package: text("topology/physical_package_id")
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
            domain: with_memory.next().map_or(0, |(number, _)| *number),
            cache: last_cache(files, cpu),
            core: core
                .filter(|core: &Vec<u32>| core.contains(&cpu))
                .unwrap_or_else(|| vec![cpu]),
        }
    }
}

/// Returns the first processor that shares the last-level cache with this one, and the name of the cache.
fn last_cache(files: &dyn SystemFiles, cpu: u32) -> (u32, String) {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let indexes = files.names(&folder).into_iter();
    let levels = indexes.filter_map(|index| {
        let level: u32 = number(files, &format!("{folder}/{index}/level"))?;
        Some((level, format!("{folder}/{index}")))
    });
    let Some((level, cache)) = levels.max() else {
        return (0, String::new());
    };
    let sharing = files
        .text(&format!("{cache}/shared_cpu_list"))
        .unwrap_or_default();
    let first = listed_numbers(&sharing).first().copied().unwrap_or(cpu);
    let size = files.text(&format!("{cache}/size")).unwrap_or_default();
    (
        first,
        format!("L{level} {}", kibibytes(&size))
            .trim_end()
            .to_owned(),
    )
}

/// Returns a size that the kernel writes as `32768K` in the usual form.
fn kibibytes(size: &str) -> String {
    match size
        .strip_suffix('K')
        .and_then(|number| number.parse::<u64>().ok())
    {
        Some(kib) if kib >= 1024 && kib.is_multiple_of(1024) => format!("{} MiB", kib / 1024),
        Some(kib) => format!("{kib} KiB"),
        None => size.to_owned(),
    }
}

/// Returns the processors of each NUMA node.
fn domains(files: &dyn SystemFiles) -> BTreeMap<u32, Vec<u32>> {
    let names = files.names(DOMAINS).into_iter();
    let numbers = names.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let with_cpus = numbers.map(|number| {
        let list = files.text(&format!("{DOMAINS}/node{number}/cpulist"));
        (number, listed_numbers(&list.unwrap_or_default()))
    });
    with_cpus.collect()
}

fn memory_mib(files: &dyn SystemFiles, domain: u32) -> Option<u64> {
    let list = files.text(&format!("{DOMAINS}/node{domain}/meminfo"))?;
    let (_, total) = list.split_once("MemTotal:")?;
    let kib: u64 = total.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

/// Returns the network adapters by their NUMA node. Virtual interfaces have no device, and are left out.
fn adapters(files: &dyn SystemFiles) -> BTreeMap<Option<u32>, Vec<String>> {
    let mut adapters: BTreeMap<Option<u32>, Vec<String>> = BTreeMap::new();
    for class in ["/sys/class/net", "/sys/class/infiniband"] {
        for name in files.names(class) {
            let device = format!("{class}/{name}/device");
            if !files.names(&device).is_empty() {
                // Devices of machines without NUMA are at node -1.
                let domain = number::<u32>(files, &format!("{device}/numa_node"));
                adapters.entry(domain).or_default().push(name);
            }
        }
    }
    adapters
}

const CPUS: &str = "/sys/devices/system/cpu";
const DOMAINS: &str = "/sys/devices/system/node";

#[cfg(test)]
mod tests {
    use super::{NodeTopology, PlacedRank};
    use crate::system_files::made_up::MadeUpFiles;

    /// Returns a machine with two packages, each with a NUMA node and two caches of two cores of two threads.
    pub(super) fn two_packages() -> NodeTopology {
        let mut files = vec![
            (
                "/sys/devices/system/cpu/online".to_owned(),
                "0-15".to_owned(),
            ),
            (
                "/sys/devices/system/node/node0/cpulist".to_owned(),
                "0-3,8-11".to_owned(),
            ),
            (
                "/sys/devices/system/node/node1/cpulist".to_owned(),
                "4-7,12-15".to_owned(),
            ),
            (
                "/sys/devices/system/node/node0/meminfo".to_owned(),
                "Node 0 MemTotal:  2097152 kB\nNode 0 MemFree: 4 kB".to_owned(),
            ),
            (
                "/sys/class/net/eth0/device/numa_node".to_owned(),
                "-1".to_owned(),
            ),
            ("/sys/class/net/lo/mtu".to_owned(), "65536".to_owned()),
            (
                "/sys/class/infiniband/mlx5_0/device/numa_node".to_owned(),
                "1".to_owned(),
            ),
        ];
        for cpu in 0..16_u32 {
            let core = cpu % 8;
            let cache = core / 2 * 2;
            let at = |what: &str| format!("/sys/devices/system/cpu/cpu{cpu}/{what}");
            files.extend([
                (at("topology/physical_package_id"), (core / 4).to_string()),
                (
                    at("topology/thread_siblings_list"),
                    format!("{core},{}", core + 8),
                ),
                (at("cache/index0/level"), "1".to_owned()),
                (at("cache/index3/level"), "3".to_owned()),
                (at("cache/index3/size"), "32768K".to_owned()),
                (
                    at("cache/index3/shared_cpu_list"),
                    format!("{cache}-{},{}-{}", cache + 1, cache + 8, cache + 9),
                ),
            ]);
        }
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (&**path, &**text))
            .collect();
        let ranks = vec![
            PlacedRank {
                rank: 0,
                processors: vec![0, 8],
            },
            PlacedRank {
                rank: 5,
                processors: vec![3, 4],
            },
        ];
        NodeTopology::observe(&MadeUpFiles::new(&files), ranks)
    }

    #[test]
    fn parts_are_nested_and_ranks_stand_where_they_may_run() {
        let expected = "\
Topology
package 0
  NUMA node 0: 2048 MiB
    L3 32 MiB: 2 cores, processors 0-1,8-9
      rank 0 on 0,8
    L3 32 MiB: 2 cores, processors 2-3,10-11
      rank 5 on 3
package 1
  NUMA node 1: mlx5_0
    L3 32 MiB: 2 cores, processors 4-5,12-13
      rank 5 on 4
    L3 32 MiB: 2 cores, processors 6-7,14-15
adapters in no place that is known: eth0
";
        assert_eq!(two_packages().text(), expected);
        let json = two_packages().json();
        assert_eq!(
            json["packages"][1]["numa_nodes"][0]["adapters"][0],
            "mlx5_0"
        );
        assert_eq!(json["ranks"][1]["processors"][1], 4);
    }

    #[test]
    fn a_machine_that_tells_only_its_processors_has_one_part_of_each_kind() {
        let files = MadeUpFiles::new(&[("/sys/devices/system/cpu/online", "0-2")]);
        let topology = NodeTopology::observe(&files, Vec::new());
        assert_eq!(
            topology.text(),
            "Topology\npackage 0\n  NUMA node 0\n    3 cores, processors 0-2\n"
        );
        let nothing = NodeTopology::observe(&MadeUpFiles::default(), Vec::new());
        assert_eq!(nothing.text(), "Topology\n");
    }
}
