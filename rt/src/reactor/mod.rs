//! The reactor: makes progress, arms the driver, and sleeps until something happens.

mod agent;
mod backend;
#[cfg(test)]
mod backend_tests;
mod cooldown;
mod epoll;
#[cfg(all(test, loom))]
mod loom_models;
mod notifier;
mod seat;
mod sleep_watch;
mod timers;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
mod uring;
mod uring_refusal;
mod watchdog;

pub use self::uring_refusal::UringRefusal;
pub(crate) use self::{
    agent::{ProgressAgent, agent_name},
    backend::{BackendChoice, Notifier, SleepBackend, open, probe},
    cooldown::{Cooldown, CooldownAction, longest_spin},
    seat::SeatLock,
    sleep_watch::SleepWatch,
    timers::{TimerId, Timers},
    watchdog::ProgressWatchdog,
};
