//! Interfaces of a process: threads that wait for events, and a thread that makes progress while nobody calls.

mod agent;
mod host;
mod memory;
mod nic;

pub use self::{
    memory::ProcessMemory,
    nic::{Mode, Nic, Setup},
};
