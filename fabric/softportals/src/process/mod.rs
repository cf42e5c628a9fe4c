//! Interfaces of a process: calls that wait for events, and a thread that makes progress while no call does.

mod agent;
mod host;
mod memory;
mod nic;
mod packet_budget;
mod sleepers;
mod wait_any;

pub use self::{
    memory::ProcessMemory,
    nic::{SoftNic, SoftNicMode, SoftNicSetup},
    wait_any::wait_count_among,
};
