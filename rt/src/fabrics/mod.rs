//! Opens the driver that `RIPSTOP_FABRIC` selects.

use std::{
    fmt::Display,
    io,
    sync::{Arc, OnceLock},
};

// The board, its node and how ranks are woken there belong to the node, and are there before any driver is. No driver is
// named here: the registry has all of them.
use ripstop_fabric::{
    counters::DriverStats,
    deferred::DeferredDriver,
    driver::{Driver, PreparedEndpoint},
    hierarchical::{HierarchicalConfig, HierarchicalDriver},
    provider::{DriverEndpoint, JobPlace, OpenRequest, OpenedDriver, Provider, ProviderReach},
    registry::FabricSelection,
    shm::{Board, BoardRanks, ProcessMonitor, WakeMethod},
};

use crate::{
    boot::{self, ArrivalGuard, Boot},
    error::{Error, ErrorKind, Result, remedy},
    group::WorldRank,
    settings::Settings,
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
    /// Provider of the driver, or of the network's one if there is also shared memory.
    pub(crate) provider: &'static dyn Provider,
    /// True if the reactor can sleep on a futex.
    pub(crate) futex: bool,
    pub(crate) counters: &'a Arc<DriverStats>,
    /// Reason why this rank never got the addresses of the others, if that happens.
    pub(crate) unmet: &'a Arc<OnceLock<String>>,
}

impl DriverParams<'_> {
    /// Opens the driver that the settings select. It may not reach other ranks yet: the exchange settles when all
    /// addresses have arrived.
    pub(crate) fn open(mut self) -> Result<Box<dyn Driver>> {
        let fabric = self.settings.fabric;
        self.check_reach(fabric)?;
        let opened = self.provider.open(self.request()).map_err(open_error)?;
        self.report(&opened);
        let combination = fabric.is_combined().then(|| self.combination(fabric));
        let driver = match opened.endpoint {
            DriverEndpoint::Prepared(prepared) => self.join(prepared)?,
            DriverEndpoint::Ready(driver) => {
                self.joining.exchange.settle().map_err(refused)?;
                driver
            }
        };
        match combination {
            Some(config) => Ok(Box::new(
                HierarchicalDriver::open(config, driver).map_err(open_error)?,
            )),
            None => Ok(driver),
        }
    }

    /// Checks that the driver reaches all ranks of the job.
    fn check_reach(&self, fabric: FabricSelection) -> Result<()> {
        let provider = self.provider;
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
                 reach other nodes: start all ranks on one node, or set RIPSTOP_FABRIC to {networks}"
            ),
            _ => format!(
                "the job has {ranks} ranks, and RIPSTOP_FABRIC={name} ({summary}) reaches no other ranks: unset it, or set \
                 it to {networks} if the ranks are on several nodes"
            ),
        }))
    }

    fn request(&self) -> OpenRequest<'_> {
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
            announces_ends: !self.settings.fabric.is_combined(),
            values: &self.settings.driver_values,
            counters: Arc::clone(self.counters),
        }
    }

    /// Reports once per node what a driver found, because all its ranks see the same.
    fn report(&self, opened: &OpenedDriver) {
        if self.boot.on_node() == 0 {
            for notice in &opened.notices {
                tracing::info!("{notice}");
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
        board.leave_note(boot.on_node(), &prepared.address());
        let limit = self.settings.boot_timeout;
        let ranks = (WorldRank(boot.rank), boot.size);
        let arrival = (!both).then(|| self.arrival.second_guard());
        let unmet = Arc::clone(self.unmet);
        let mut meet = move |prepared: Box<dyn PreparedEndpoint>| -> io::Result<_> {
            let heard = boot::collect_addresses(&mut boot, &board, limit);
            let addresses = heard.map_err(io::Error::other)?;
            let driver = prepared.connect(&addresses).map_err(remedied)?;
            boot.exchange.settle().map_err(io::Error::other)?;
            Ok(driver)
        };
        let join = move |prepared| {
            let met = meet(prepared);
            match &met {
                Ok(_) => arrival.into_iter().for_each(ArrivalGuard::release),
                Err(why) => _ = unmet.set(why.to_string()),
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
