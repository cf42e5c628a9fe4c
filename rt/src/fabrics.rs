//! Opens the driver that `RIPSTOP_FABRIC` selects.

use std::{
    fmt::Display,
    io,
    sync::{Arc, OnceLock},
};

use ripstop_fabric::{
    connect::Scheme,
    counters::Counters,
    driver::{Driver, Ends, Prepared},
    late::Late,
    nearfar::{NearFar, NearFarConfig},
    portals::{Compat, Portals, PortalsConfig, PortalsCounters},
    shm::{Board, Node, Processes, Shm, ShmConfig, Wake},
    verbs::{Verbs, VerbsConfig},
};

use crate::{
    boot::{self, Arrival, Boot},
    error::{Error, ErrorKind, Result, remedy},
    settings::{FabricChoice, Settings},
};

/// Parameters for opening a driver.
pub(crate) struct Opening<'a> {
    pub(crate) boot: &'a Boot,
    /// Same boot handle, for a thread that waits for the addresses of the other ranks.
    pub(crate) joining: Boot,
    /// Arrival of this rank on the board.
    pub(crate) arrival: &'a Arrival,
    /// Board of this rank's node.
    pub(crate) board: &'a Board,
    pub(crate) settings: &'a Settings,
    /// True if the reactor can sleep on a futex.
    pub(crate) futex: bool,
    pub(crate) counters: &'a Arc<Counters>,
    /// Reason why this rank never got the addresses of the others, if that happens.
    pub(crate) unmet: &'a Arc<OnceLock<String>>,
}

impl Opening<'_> {
    /// Opens the driver that the settings select. It may not reach other ranks yet: the exchange settles when all
    /// addresses have arrived.
    pub(crate) fn open(self) -> Result<Box<dyn Driver>> {
        match self.settings.fabric {
            FabricChoice::Auto | FabricChoice::Shm => self.open_shm(),
            FabricChoice::Portals => self.prepare_portals(true).and_then(|end| self.join(end)),
            FabricChoice::Verbs => self.prepare_verbs().and_then(|end| self.join(end)),
            FabricChoice::ShmPortals => self
                .prepare_portals(false)
                .and_then(|end| self.join_both(end)),
            FabricChoice::ShmVerbs => self.prepare_verbs().and_then(|end| self.join_both(end)),
        }
    }

    fn open_shm(mut self) -> Result<Box<dyn Driver>> {
        let (ranks, node) = (self.boot.size, self.boot.node.ranks.len());
        if node != ranks as usize {
            return Err(refused(format!(
                "the job has {ranks} ranks and this node {node} of them, and shared memory does not reach other nodes: start \
                 all ranks on one node, or set RIPSTOP_FABRIC to shm+verbs or shm+portals"
            )));
        }
        let mut config = ShmConfig::new(self.boot.rank);
        config.wake = self.wake();
        config.single_copy = self.settings.single_copy;
        config.patience = self.settings.boot_timeout;
        config.counters = Arc::clone(self.counters);
        let shm = Shm::open(self.board, config).map_err(unopened)?;
        self.joining.exchange.settle().map_err(refused)?;
        Ok(Box::new(shm))
    }

    /// Prepares the Portals driver. `says_ends` is true if ranks announce on the board how they end. In combination
    /// with shared memory, that driver does so.
    fn prepare_portals(&self, says_ends: bool) -> Result<Box<dyn Prepared>> {
        let named = |text: &String| (!text.is_empty() && text != "auto").then(|| text.clone());
        let (slabs, slab_len) = self.settings.portals_slabs;
        let config = PortalsConfig {
            events: self.settings.portals_events,
            slabs,
            slab_len,
            library: named(&self.settings.portals_library).map(Into::into),
            family: named(&self.settings.portals_abi),
            interfaces: self.settings.portals_ifaces.clone(),
            ends: says_ends.then(|| Arc::new(self.node()) as Arc<dyn Ends>),
            compat: self.compat().map_err(unopened)?,
            tags: match self.settings.portals_tags.as_str() {
                "on" => Some(PortalsConfig::TAGS_LEAST),
                least => least.parse().ok(),
            },
            counters: Arc::new(PortalsCounters::of(self.counters)),
            ..PortalsConfig::default()
        };
        Ok(Box::new(Portals::prepare(config).map_err(unopened)?))
    }

    /// Returns the foreign message layout, configured by that library's own variables.
    fn compat(&self) -> io::Result<Option<Compat>> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        });
        Compat::named(&self.settings.portals_compat, variables)
    }

    fn prepare_verbs(&self) -> Result<Box<dyn Prepared>> {
        let mut config = VerbsConfig::new(self.boot.rank, self.boot.size);
        config.place = self.boot.on_node();
        let device = &self.settings.verbs_device;
        config.gid_index.clone_from(&self.settings.verbs_gid_index);
        config.scheme = match self.settings.connect.as_str() {
            "all-to-all" => Some(Scheme::AllToAll),
            "on-demand" => Some(Scheme::OnDemand),
            "hybrid" => Some(Scheme::Hybrid),
            _ => None,
        };
        config.pattern = self.settings.pattern;
        config.ranks_per_node = self.boot.node.most;
        config.connections_max = self
            .settings
            .verbs_connections
            .map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        config.pinned_max = self.settings.verbs_pinned as u64;
        // The time for which the adapter retransmits is not the time for which a host may be silent, unless that was
        // configured.
        if self.settings.is_set("RIPSTOP_DETECT_MS") {
            config.patience = config.patience.max(self.settings.detect);
        }
        config.device = (!device.is_empty()).then(|| device.clone());
        config.counters = Arc::clone(self.counters);
        let prepared = Verbs::prepare(config).map_err(unopened)?;
        // Report this once per node, because all its ranks see the same ports.
        if self.boot.on_node() == 0 {
            for port in prepared.left_out() {
                tracing::info!(
                    %port,
                    "this port is down and left out: see `ibv_devinfo`, or name others with RIPSTOP_VERBS_DEVICE"
                );
            }
        }
        Ok(Box::new(prepared))
    }

    fn node(&self) -> Node {
        Node {
            board: self.board.clone(),
            ranks: self.boot.node.ranks.clone(),
        }
    }

    const fn wake(&self) -> Wake {
        if self.futex { Wake::Futex } else { Wake::Fd }
    }

    /// Joins shared memory and a network into one driver.
    fn join_both(self, prepared: Box<dyn Prepared>) -> Result<Box<dyn Driver>> {
        let config = NearFarConfig {
            rank: self.boot.rank,
            size: self.boot.size,
            node: self.node(),
            together: self.settings.shm_ranks,
            wake: self.wake(),
            single_copy: self.settings.single_copy,
            loopback: self.settings.loopback,
            patience: self.settings.boot_timeout,
            counters: Arc::clone(self.counters),
        };
        let far = self.join(prepared)?;
        Ok(Box::new(NearFar::open(config, far).map_err(unopened)?))
    }

    /// Returns a network's driver before the addresses of the ranks have arrived.
    ///
    /// If they never arrive, the rank has failed, and is marked so on the board. In combination with shared memory it
    /// is not marked, because the rank can still be reached there.
    fn join(self, prepared: Box<dyn Prepared>) -> Result<Box<dyn Driver>> {
        let both = matches!(
            self.settings.fabric,
            FabricChoice::ShmPortals | FabricChoice::ShmVerbs
        );
        // Shared memory already watches the processes of this node.
        let alone = (!both).then(|| self.node());
        let (mut boot, board) = (self.joining, self.board.clone());
        // From here on, the death of this process keeps no other rank from getting all addresses.
        board.leave_note(boot.on_node(), &prepared.address());
        let limit = self.settings.boot_timeout;
        let ranks = (boot.rank, boot.size);
        let arrival = (!both).then(|| self.arrival.again());
        let unmet = Arc::clone(self.unmet);
        let mut meet = move |prepared: Box<dyn Prepared>| -> io::Result<_> {
            let heard = boot::hear(&mut boot, &board, limit);
            let addresses = heard.map_err(io::Error::other)?;
            let driver = prepared.connect(&addresses).map_err(remedied)?;
            boot.exchange.settle().map_err(io::Error::other)?;
            Ok(driver)
        };
        let join = move |prepared| {
            let met = meet(prepared);
            match &met {
                Ok(_) => arrival.into_iter().for_each(Arrival::stay),
                Err(why) => _ = unmet.set(why.to_string()),
            }
            met
        };
        let mut late = Late::open(prepared, ranks, join).map_err(unopened)?;
        if let Some(node) = alone {
            late = late.beside(Processes::new(node, ranks.0).map_err(unopened)?);
        }
        Ok(Box::new(late))
    }
}

/// Returns the system's error at start, with a hint which limit to raise.
pub(crate) fn unopened(why: io::Error) -> Error {
    refused(remedied(why))
}

fn remedied(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{why}{}", remedy(&why)))
}

fn refused(why: impl Display) -> Error {
    Error::new("init", ErrorKind::Setup(why.to_string()))
}
