//! Connecting: from a prepared rank, which peers can reach, to a driver that knows its peers.

use std::io;

use super::{
    address::PortalsAddress,
    driver_state::Portals,
    multirail::{PortalsRails, RailTableEntry},
    onesided::{PortalsCommands, PortalsRmaSlots},
    peer::{ControlWords, PortalsPeer},
    posted_recvs::PostedRecvTable,
    prepare::{BOARD_LEN, PortalsResources, PreparedPortals},
    task_lists::PortalsTaskLists,
    transport::PortalsTransport,
    wait_on,
};
use crate::{
    driver::{self, AbilitySummary, Caps, Driver, WakeSource},
    offload::ThresholdWatches,
};

impl driver::PreparedEndpoint for PreparedPortals {
    fn address(&self) -> Vec<u8> {
        Self::address(self)
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        wait_on(&self.resources.queues, &self.alarm)
    }

    fn abilities(&self) -> AbilitySummary {
        self.abilities
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Ok(Box::new(Self::connect(*self, addresses.to_vec())?))
    }
}

impl PreparedPortals {
    /// Connects to the ranks with these addresses, in the order of ranks. This rank is identified by its own address.
    ///
    /// # Errors
    /// `InvalidInput` if an address is malformed or occurs twice, or if this rank's address is missing; otherwise the error of
    /// the library.
    pub fn connect(self, peers: Vec<Vec<u8>>) -> io::Result<Portals> {
        let Self {
            resources: ground,
            address,
            places: _,
            speeds,
            end_records: said,
            caps,
            abilities,
            alarm,
        } = self;
        let (addresses, places): (Vec<_>, Vec<_>) = read_addresses(&peers)?.into_iter().unzip();
        let found = addresses.iter().position(|other| *other == address);
        let me = found.and_then(|rank| u32::try_from(rank).ok());
        let me = me.ok_or_else(|| invalid("the addresses lack that of this rank"))?;
        let slots = slots(&ground)?;
        // Limit each peer, so that one that accepts nothing leaves enough credits for the others.
        let window = (ground.credits / 2).min(WINDOW_MAX);
        let places = addresses.iter().zip(places);
        let places = places.map(|(address, others)| [vec![address.first_place()], others].concat());
        let longest = ground.rails.iter().map(|rail| rail.ni.limits.max_msg_size);
        let piece_max = longest.min().unwrap_or(0);
        let rails = PortalsRails::new(ground.rails.len(), places.collect(), speeds, piece_max);
        let per_peer = size_of::<PortalsPeer>()
            + (1 + ground.rails.len()) * ControlWords::LEN
            + rails.peer_len();
        ground.counters.peer_bytes.add(per_peer as u64);
        let lent = abilities
            .tags
            .map(|_| PostedRecvTable::new(&ground.ni.limits, &addresses));
        let peers = all_peers(me, addresses, window, &rails);
        let transport = PortalsTransport::new(ground, me, address, peers, rails)?;
        if transport.resources.ni.waits_to_meet {
            transport.contact_all_peers()?;
        }
        Ok(Portals {
            is_interrupted: transport.resources.ni.interrupts().is_some(),
            transport,
            commands: PortalsCommands::new(slots),
            lists: PortalsTaskLists::new(abilities.lists),
            watches: ThresholdWatches::new(),
            posted_recvs: lent.transpose()?.map(Box::new),
            end_records: said,
            alarm,
            fails_twice: false,
            caps,
            abilities,
        })
    }
}

fn slots(ground: &PortalsResources) -> io::Result<PortalsRmaSlots> {
    if !ground.ni.goes_on {
        PortalsRmaSlots::new(ground.credits, None)
    } else {
        // A slot is lost with each operation to a peer that dies.
        let room = usize::try_from(ground.ni.limits.max_msg_size).ok();
        PortalsRmaSlots::new(OPERATIONS, room)
    }
}

/// Returns all peers, each with at most `window` messages in flight to it.
fn all_peers(
    me: u32,
    addresses: Vec<PortalsAddress>,
    window: u32,
    rails: &PortalsRails,
) -> Vec<PortalsPeer> {
    let all = (0..).zip(addresses);
    let peer = |(rank, address)| {
        let home = rails.home(me, rank).unwrap_or_default();
        PortalsPeer::new(address, window, home)
    };
    all.map(peer).collect()
}

fn read_addresses(peers: &[Vec<u8>]) -> io::Result<Vec<(PortalsAddress, Vec<RailTableEntry>)>> {
    if peers.len() > (BOARD_LEN - 4096) / ControlWords::LEN {
        return Err(invalid("more than 2²⁰ ranks"));
    }
    let mut seen = std::collections::BTreeMap::new();
    let read = peers.iter().enumerate().map(|(rank, bytes)| {
        let address = PortalsAddress::from_bytes(bytes).ok_or_else(|| {
            invalid(&format!(
                "rank {rank} published an address that is not one of this driver: run the same version on all ranks"
            ))
        })?;
        match seen.insert(address.0.process, rank) {
            None => Ok(address),
            Some(other) => Err(invalid(&format!(
                "ranks {other} and {rank} have the same Portals process id: run each rank in a process of its own"
            ))),
        }
    });
    read.collect()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Maximum number of messages in flight to one peer, equal to the short slots that it may use.
const WINDOW_MAX: u32 = 256;
/// Commands in flight over a library that moves bytes only in calls.
const OPERATIONS: u32 = 256;
