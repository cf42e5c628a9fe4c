//! A software implementation of Portals 4, for machines without BXI hardware.
//!
//! The semantics of the interface are in a pure state machine, [`SoftInterface`]. The other modules bring it packets and memory.
//!
//! ```text
//!   C ABI (sandia42, portails4)      numbers and layouts of one family, nothing else
//!   process                          handles over several interfaces, waiting, the agent's thread
//!   SoftInterface<M: AppMemory>      portal table, lists, unexpected messages, counters, triggered operations: no I/O
//!   transport                        packets between processes, in the order of each sender
//! ```
//!
//! **One interface.** A message is a request that the initiator numbers, data packets that follow the request, and an answer if
//! the initiator wants one. The target matches the request when its first packet arrives: priority list, then overflow list,
//! otherwise flow control decides. Data goes straight to the memory that the match selected, and the event is posted when all
//! data is there. Data is read from the initiator's memory when the transport takes it, so nothing is copied twice. A full
//! transport to one peer does not block messages to other peers.
//!
//! **Order.** The transport guarantees that packets between two processes stay in order, so messages match, and are delivered, in
//! the order in which they were started. An `AUTO_UNLINK` event follows the events of all messages that were put into the entry,
//! so a program that receives it may append the memory again. `AUTO_FREE` follows the last event about a message in the entry.
//!
//! **Bounds.** [`NiLimits`] bounds the objects of the application. Those objects bound the memory that a peer can cause to be
//! used: one incomplete message per peer, and up to `max_unexpected_headers` headers. A full event queue drops events and reports
//! that it did.
//!
//! **Trust.** The transport vouches for the sender of a packet. Everything inside the packet is checked: a wrong rank, operation,
//! offset or length fails that message and harms nothing else.

pub mod abi;
mod atomic;
mod counter;
mod error;
mod event;
mod habits;
mod interface;
mod limits;
mod memory;
mod options;
mod packet;
pub mod process;
mod slab;
pub mod transport;

pub use atomic::{AtomicDatatype, AtomicOperator};
pub use counter::SoftCtValue;
pub use error::SoftError;
pub use event::{DequeuedEvent, EntryList, EventKind, FullEvent, NiFail, PhysicalId, SoftPeer};
pub use habits::LibraryHabits;
pub use interface::{
    AckRequest, CtId, CtThreshold, EntryId, EqId, InitiatorFilter, LibraryFamily, MdId, MdOffset,
    MemoryDescriptor, NiChanges, NiCommand, NiConfig, PacketLink, RequestTarget, SearchMode,
    SoftInterface, SoftListEntry, SoftPacket, StatusRegisters,
};
pub use limits::NiLimits;
pub use memory::{AccessFault, AppMemory, IovecSegment, SoftRegion};
pub use options::{EntryOptions, MdOptions, TableOptions};
pub use packet::SwapOperand;
pub use slab::GenerationalId;
