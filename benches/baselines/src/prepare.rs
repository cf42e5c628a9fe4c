//! Preparation: from settings and a layout to a rank that peers can reach.

use std::{io, sync::Arc};

use ripstop_fabric::{
    driver::{AbilitySummary, Caps, Driver, DriverCost, PreparedEndpoint, WakeSource},
    portals::{
        GuestAddress, Portals, PortalsConfig, PortalsCounters, PreparedGuest, PreparedPortals,
    },
};

use crate::{mpc::MpcDriver, pscom::PscomDriver, variables::PscomLayout};

/// Message layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BaselineLayout {
    /// The layout of pscom4portals.
    Pscom(PscomLayout),
    /// The layout of MPC: 64 blocks of 64 KiB.
    Mpc,
}

/// An open interface with memory for messages, but without peers.
#[derive(Debug)]
pub struct PreparedBaseline {
    prepared: PreparedPortals,
    /// The guest that has the buffers, in the layout of pscom.
    guest: Option<(PreparedGuest, PscomLayout)>,
    counters: Arc<PortalsCounters>,
    caps: Caps,
}

impl BaselineLayout {
    /// Opens the library, and an interface that peers can reach. The layout determines slabs and, for pscom, events.
    ///
    /// # Errors
    /// `InvalidInput` for more than one interface; otherwise the same as those of [`Portals::prepare`].
    pub fn prepare(&self, config: PortalsConfig) -> io::Result<PreparedBaseline> {
        if config.interfaces.len() > 1 {
            let why = format!(
                "PortalsConfig::interfaces are {:?}, but the layouts of other libraries use one interface: name one",
                config.interfaces
            );
            return Err(invalid(why));
        }
        let config = self.lay_out(config);
        let counters = Arc::clone(&config.counters);
        let mut prepared = Portals::prepare(config)?;
        let guest = match self {
            Self::Pscom(pscom) => Some((prepared.add_guest(pscom.eq_size)?, pscom.clone())),
            Self::Mpc => None,
        };
        let caps = self.caps(PreparedEndpoint::caps(&prepared));
        Ok(PreparedBaseline {
            prepared,
            guest,
            counters,
            caps,
        })
    }

    fn lay_out(&self, config: PortalsConfig) -> PortalsConfig {
        let config = PortalsConfig {
            tags: None,
            ..config
        };
        match self {
            Self::Pscom(pscom) => PortalsConfig {
                // The driver's slabs take greetings and goodbyes only.
                slabs: 2,
                slab_len: GREETINGS_LEN,
                events: pscom.eq_size,
                ..config
            },
            Self::Mpc => PortalsConfig {
                slabs: MPC_BLOCKS,
                slab_len: MPC_BLOCK_LEN,
                body_max: MPC_BODY_MAX,
                ..config
            },
        }
    }

    /// Returns the capabilities. Messages up to the longest body are sent whole, because that costs no more than any other path.
    fn caps(&self, driver: &Caps) -> Caps {
        Caps {
            body_max: match self {
                Self::Pscom(pscom) => pscom.body_max(driver),
                Self::Mpc => driver.body_max,
            },
            cost: DriverCost {
                copy_ns_per_kib: 0.0,
                get_ns_per_kib: driver.cost.message_ns_per_kib,
                put_ns_per_kib: driver.cost.message_ns_per_kib,
                ..driver.cost
            },
            ..driver.clone()
        }
    }
}

impl PreparedBaseline {
    /// Returns the address of this rank, for [`connect`](Self::connect) at all ranks.
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        let own = self.guest.as_ref();
        let own = own.map_or(Vec::new(), |(guest, _)| guest.address().to_bytes().to_vec());
        [self.prepared.address(), own].concat()
    }

    /// Connects to the ranks with these addresses, in the order of ranks. This rank is identified by its own address.
    ///
    /// # Errors
    /// The same as those of [`PreparedPortals::connect`].
    pub fn connect(self, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        let own = self.address();
        let me = addresses.iter().position(|other| *other == own);
        let me = me.ok_or_else(|| invalid("the addresses lack that of this rank".to_owned()))?;
        let Self {
            prepared,
            guest,
            counters,
            caps,
        } = self;
        let Some((guest, layout)) = guest else {
            let driver = prepared.connect(addresses.to_vec())?;
            let mpc = MpcDriver::new(driver, caps, counters, me, addresses.len());
            return Ok(Box::new(mpc));
        };
        let (addresses, guests): (Vec<_>, Vec<_>) = split(addresses)?.into_iter().unzip();
        let driver = prepared.connect(addresses)?;
        let pscom = PscomDriver::connect(driver, guest, &layout, caps, counters, me, guests)?;
        Ok(Box::new(pscom))
    }
}

impl PreparedEndpoint for PreparedBaseline {
    fn address(&self) -> Vec<u8> {
        Self::address(self)
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        self.prepared.wait_on()
    }

    fn abilities(&self) -> AbilitySummary {
        self.prepared.abilities()
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Self::connect(*self, addresses)
    }
}

/// Splits each address into that of the driver and that of the guest.
fn split(addresses: &[Vec<u8>]) -> io::Result<Vec<(Vec<u8>, GuestAddress)>> {
    let halves = addresses.iter().enumerate().map(|(rank, address)| {
        let (driver, guest) = address.split_last_chunk().ok_or_else(|| {
            invalid(format!(
                "rank {rank} published an address that is not one of this layout: use the same layout on all ranks"
            ))
        })?;
        Ok((driver.to_vec(), GuestAddress::from_bytes(*guest)))
    });
    halves.collect()
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Bytes of a slab for greetings: the least that the driver takes for its longest body.
const GREETINGS_LEN: usize = 131_328;

/// Number of MPC's blocks, their bytes, and the longest body of a message in one.
const MPC_BLOCKS: usize = 64;
const MPC_BLOCK_LEN: usize = 64 << 10;
const MPC_BODY_MAX: usize = 8192;
