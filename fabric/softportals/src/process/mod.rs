//! Interfaces of a process: calls that wait for events, and a thread that makes progress while no call does.

mod agent;
mod wait_any;
mod host;
mod memory;
mod nic;
mod sleepers;
mod packet_budget;

pub use self::{
    wait_any::wait_count_among,
    memory::ProcessMemory,
    nic::{Mode, Nic, Setup},
};
