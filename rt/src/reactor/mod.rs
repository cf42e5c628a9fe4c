//! The reactor: makes progress, arms the driver, and sleeps until something happens.

mod agent;
mod backend;
#[cfg(test)]
mod backend_tests;
mod cooldown;
mod epoll;
mod watchdog;
#[cfg(all(test, loom))]
mod loom_models;
mod notifier;
mod seat;
mod timers;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
mod uring;
mod sleep_watch;

pub(crate) use self::{
    agent::Agent,
    backend::{Backend, Choice, Notifier, open, probe},
    cooldown::{Cooldown, Rest},
    watchdog::Lookout,
    seat::SeatLock,
    timers::{TimerId, Timers},
    sleep_watch::Watch,
};
