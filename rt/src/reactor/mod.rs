//! The loop: progress, arm, sleep.

mod agent;
mod backend;
#[cfg(test)]
mod backend_tests;
mod cooldown;
mod epoll;
mod notifier;
mod seat;
mod timers;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
mod uring;

pub(crate) use self::{
    agent::Agent,
    backend::{Backend, Choice, Notifier, open, probe},
    cooldown::{Cooldown, Rest},
    seat::SeatLock,
    timers::{TimerId, Timers},
};
