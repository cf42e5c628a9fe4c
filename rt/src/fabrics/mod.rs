//! Opens the driver that `RIPSTOP_FABRIC` selects, or that all ranks of the job choose.

mod chosen_network;
#[cfg(test)]
mod tests;

use std::{fmt::Display, io, sync::Arc};

// The board, its node and how ranks are woken there belong to the node, and are there before any driver is. No driver is
// named here: the registry has all of them.
use ripstop_fabric::{
    counters::DriverStats,
    deferred::DeferredDriver,
    driver::{Driver, PreparedEndpoint},
    hierarchical::{HierarchicalConfig, HierarchicalDriver},
    provider::{DriverEndpoint, JobPlace, OpenRequest, Provider, ProviderReach},
    registry::FabricSelection,
    shm::{Board, BoardRanks, ProcessMonitor, WakeMethod},
};

use crate::{
    boot::{self, ArrivalGuard, Boot, HostName, report::FailureReporter},
    error::{Error, ErrorKind, Result, remedy},
    group::WorldRank,
    settings::Settings,
    shared::JobLink,
};

/// Parameters for opening a driver.
pub(crate) struct DriverParams<'a> {
    pub(crate) boot: &'a Boot,
    /// Same boot handle, for a thread that waits for the addresses of the other ranks.
    pub(crate) joining: Boot,
    /// Arrival of this rank on the board.
    pub(crate) arrival: &'a ArrivalGuard,
    /// Board of this rank's node.
    pub(crate) board: &'a Board,
    pub(crate) settings: &'a Settings,
    /// Provider to use instead of the selected one.
    pub(crate) provider: Option<&'static dyn Provider>,
    /// True if the reactor can sleep on a futex.
    pub(crate) futex: bool,
    pub(crate) counters: &'a Arc<DriverStats>,
    /// Takes the names of the ranks' hosts, or the reason why this rank never got the addresses of the others.
    pub(crate) link: &'a Arc<JobLink>,
    /// Connection on which a rank is reported that ends while this rank waits for its address.
    pub(crate) reporter: Option<&'a FailureReporter>,
}

impl DriverParams<'_> {
    /// Opens the driver that the settings select. It may not reach other ranks yet: the exchange settles when all
    /// addresses have arrived.
    pub(crate) fn open(self) -> Result<OpenedFabric> {
        let fabric = self.settings.fabric;
        match self.provider {
            Some(provider) => self.open_one(provider, "the program opens it"),
            None if !fabric.is_auto() => self.open_one(fabric.provider(), "RIPSTOP_FABRIC is set"),
            None if self.shares_memory_with_all() => {
                self.open_one(fabric.provider(), "all ranks share memory")
            }
            None => self.open_chosen(),
        }
    }

    fn shares_memory_with_all(&self) -> bool {
        let (together, size) = (self.settings.shm_ranks, self.boot.size);
        self.boot.node.ranks.len() == size as usize && together.is_none_or(|some| some >= size)
    }

    /// Opens the driver of a provider, beside shared memory if that is selected.
    fn open_one(mut self, provider: &'static dyn Provider, why: &str) -> Result<OpenedFabric> {
        let fabric = self.settings.fabric;
        self.check_reach(fabric, provider)?;
        let request = self.request(fabric.is_combined());
        let opened = provider.open(request).map_err(open_error)?;
        self.report(&opened.notices);
        let combination = fabric.is_combined().then(|| self.combination(fabric));
        let driver = match opened.endpoint {
            DriverEndpoint::Prepared(prepared) => self.join(prepared)?,
            DriverEndpoint::Ready(driver) => {
                self.joining.exchange.settle().map_err(refused)?;
                driver
            }
        };
        let driver = match combination {
            Some(config) => combined(config, driver)?,
            None => driver,
        };
        let why = format!("{}: {why}", driver.caps().name);
        Ok(OpenedFabric { driver, why })
    }

    /// Checks that the driver reaches all ranks of the job.
    fn check_reach(&self, fabric: FabricSelection, provider: &'static dyn Provider) -> Result<()> {
        let (ranks, node) = (self.boot.size, self.boot.node.ranks.len());
        let needed = match node {
            1 if ranks == 1 => ProviderReach::Rank,
            _ if node == ranks as usize => ProviderReach::Node,
            _ => ProviderReach::Job,
        };
        if provider.reach() >= needed {
            return Ok(());
        }
        let (name, summary) = (fabric.name(), provider.summary());
        let networks: Vec<_> = FabricSelection::combined().collect();
        let networks = networks.join(" or ");
        Err(refused(match provider.reach() {
            ProviderReach::Node => format!(
                "the job has {ranks} ranks and this node {node} of them, and RIPSTOP_FABRIC={name} ({summary}) does not \
                 reach other nodes: start all ranks on one node, in containers that share /tmp, /dev/shm or the network \
                 namespace, or unset RIPSTOP_FABRIC, so that the ranks choose a network, or set it to {networks}"
            ),
            _ => format!(
                "the job has {ranks} ranks, and RIPSTOP_FABRIC={name} ({summary}) reaches no other ranks: unset it, or set \
                 it to {networks}"
            ),
        }))
    }

    fn request(&self, is_combined: bool) -> OpenRequest<'_> {
        let detect = self.settings.is_set("RIPSTOP_DETECT_MS");
        OpenRequest {
            place: JobPlace {
                rank: WorldRank(self.boot.rank),
                size: self.boot.size,
                node: self.node(),
                ranks_per_node: self.boot.node.most,
            },
            wake: self.wake(),
            patience: self.settings.boot_timeout,
            detect: detect.then_some(self.settings.detect),
            single_copy: self.settings.single_copy,
            // In a combination, the driver of shared memory does so.
            announces_ends: !is_combined,
            values: &self.settings.driver_values,
            counters: Arc::clone(self.counters),
        }
    }

    /// Reports once per node what a driver found, because all its ranks see the same.
    fn report(&self, notices: &[String]) {
        if self.boot.on_node() == 0 {
            for notice in notices {
                tracing::info!(target: "ripstop::fabric", "{notice}");
            }
        }
    }

    fn node(&self) -> BoardRanks {
        BoardRanks {
            board: self.board.clone(),
            ranks: self
                .boot
                .node
                .ranks
                .iter()
                .copied()
                .map(WorldRank)
                .collect(),
        }
    }

    const fn wake(&self) -> WakeMethod {
        if self.futex {
            WakeMethod::Futex
        } else {
            WakeMethod::Fd
        }
    }

    /// Returns the parameters for shared memory and a network as one driver.
    fn combination(&self, fabric: FabricSelection) -> HierarchicalConfig {
        HierarchicalConfig {
            name: fabric.name(),
            rank: WorldRank(self.boot.rank),
            size: self.boot.size,
            node: self.node(),
            together: self.settings.shm_ranks,
            wake: self.wake(),
            single_copy: self.settings.single_copy,
            loopback: self.settings.loopback,
            patience: self.settings.boot_timeout,
            counters: Arc::clone(self.counters),
        }
    }

    /// Returns a network's driver before the addresses of the ranks have arrived.
    ///
    /// If they never arrive, the rank has failed, and is marked so on the board. In combination with shared memory it
    /// is not marked, because the rank can still be reached there.
    fn join(self, prepared: Box<dyn PreparedEndpoint>) -> Result<Box<dyn Driver>> {
        let both = self.settings.fabric.is_combined();
        // Shared memory already watches the processes of this node.
        let alone = (!both).then(|| self.node());
        let (mut boot, board) = (self.joining, self.board.clone());
        // From here on, the death of this process keeps no other rank from getting all addresses.
        let note = HostName::own().with_address(&prepared.address());
        board.leave_note(boot.on_node(), &note);
        let limit = self.settings.boot_timeout;
        let ranks = (WorldRank(boot.rank), boot.size);
        let arrival = (!both).then(|| self.arrival.second_guard());
        let link = Arc::clone(self.link);
        let hosts = Arc::clone(&link.hosts);
        let mut meet = move |prepared: Box<dyn PreparedEndpoint>| -> io::Result<_> {
            let heard = boot::collect_addresses(&mut boot, &board, limit);
            let addresses = heard.and_then(|heard| hosts.take_names(&heard));
            let addresses = addresses.map_err(io::Error::other)?;
            let driver = prepared.connect(&addresses).map_err(remedied)?;
            boot.exchange.settle().map_err(io::Error::other)?;
            Ok(driver)
        };
        let join = move |prepared| {
            let met = meet(prepared);
            match &met {
                Ok(_) => arrival.into_iter().for_each(ArrivalGuard::release),
                Err(why) => _ = link.unmet.set(why.to_string()),
            }
            met
        };
        let mut late = DeferredDriver::open(prepared, ranks, join).map_err(open_error)?;
        if let Some(node) = alone {
            late = late.with_processes(ProcessMonitor::new(node, ranks.0).map_err(open_error)?);
        }
        Ok(Box::new(late))
    }
}

/// A driver with the reason why it was taken.
pub(crate) struct OpenedFabric {
    pub(crate) driver: Box<dyn Driver>,
    /// Sentence that begins with the name of the fabric.
    pub(crate) why: String,
}

/// Returns shared memory and a network as one driver.
fn combined(config: HierarchicalConfig, network: Box<dyn Driver>) -> Result<Box<dyn Driver>> {
    let both = HierarchicalDriver::open(config, network).map_err(open_error)?;
    Ok(Box::new(both))
}

/// Returns the system's error at start, with a hint which limit to raise.
pub(crate) fn open_error(why: io::Error) -> Error {
    refused(remedied(why))
}

fn remedied(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{why}{}", remedy(&why)))
}

fn refused(why: impl Display) -> Error {
    Error::new("init", ErrorKind::Setup(why.to_string()))
}
