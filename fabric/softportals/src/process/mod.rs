//! Interfaces of a process: calls that wait for events, and a thread that makes progress while no call does.

mod agent;
mod among;
mod host;
mod memory;
mod nic;
mod sleepers;
mod spell;

pub use self::{
    among::wait_count_among,
    memory::ProcessMemory,
    nic::{Mode, Nic, Setup},
};
