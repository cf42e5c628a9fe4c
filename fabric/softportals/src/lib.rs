//! A software Portals 4.
//!
//! Programs that speak Portals 4 run on this where there is no BXI. The meaning of the interface is in a pure state machine,
//! [`Interface`]; everything else brings it packets and memory.
//!
//! ```text
//!   C ABI (sandia42, portails4)      numbers and layouts of one family, nothing else
//!   process                          handles over several interfaces, waiting, the agent's thread
//!   Interface<M: Memory>             portal table, lists, unexpected messages, counters, triggered operations: no I/O
//!   transport                        packets between processes, in the order of each sender
//! ```
//!
//! **One interface.** A message is a request that the initiator numbers, data that follows it in packets, and an answer if one is
//! wanted. The target matches the request when its first packet comes: priority list, overflow list, or what flow control says.
//! Data goes straight to where the match put it; the event comes when all of it is there. Data is read from the initiator's
//! memory when the transport takes it, so nothing is copied twice, and a transport that is full stops nobody else.
//!
//! **Order.** Packets of a pair stay in order (that is the transport's promise), so messages match, and land, in the order in
//! which they were started. An `AUTO_UNLINK` event comes behind the events of all messages that were put into the entry: a
//! program that gets it may append the memory again. `AUTO_FREE` comes after the last event about a message in the entry.
//!
//! **Bounds.** What the application sets up is bounded by [`Limits`]. What a peer can cause is bounded by what is set up: one
//! half-finished message per peer, headers up to `max_unexpected_headers`. A full event queue loses events, and says so.
//!
//! **Trust.** The transport says who sent a packet. Everything in the packet is checked: a wrong rank, operation, offset or
//! length ends that message, and harms nothing else.

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

pub use atomic::{Datatype, Operator};
pub use counter::Count;
pub use error::Error;
pub use event::{Address, Event, EventKind, Fail, List, Peer, Taken};
pub use habits::Habits;
pub use interface::{
    Ack, Command, Config, CtId, Entry, EntryId, EqId, Family, Interface, Link, Local, Md, MdId,
    News, Packet, Remote, SearchMode, Source, Status, Trigger,
};
pub use limits::Limits;
pub use memory::{Fault, Memory, Region, Segment};
pub use options::{EntryOptions, MdOptions, TableOptions};
pub use packet::Operand;
pub use slab::Id;
