//! Posting to a peer's queue pair: at once, or together with what else begins in the same turn.
//!
//! Each post is a doorbell, and to some devices a system call. Tasks of lists begin in the middle of a turn, often some to one
//! peer; so while they do, their requests gather, and leave in one chain. As a queue pair works in its order, the last request
//! of a chain completes for all.

use std::io;

use super::{
    link::Link,
    objects::{CHAIN_MAX, STEP_MAX, What, Work},
    outbox::{Cargo, Flight, Outbox, quiet, signaled},
};

/// What waits to be posted to a peer's queue pair in one go.
#[derive(Debug, Default)]
pub(super) struct Chain {
    works: Vec<Work<'static>>,
    flights: Vec<Flight>,
}

impl Outbox {
    /// Posts requests of which the last one completes as the flight.
    pub(super) fn post(
        &mut self,
        link: &mut Link,
        mut flight: Flight,
        works: &[Work<'_>],
    ) -> io::Result<()> {
        let before = self.post_chain(link);
        self.count(link, &mut flight, works.len());
        let id = self.launch(flight);
        let (last, rest) = works.split_last().expect("a flight has requests");
        let mut all = [*last; STEP_MAX];
        all[..rest.len()].copy_from_slice(rest);
        all[rest.len()] = signaled(*last, id);
        before.and_then(|()| self.give(link, &all[..works.len()]))
    }

    /// Posts the requests of a step, or has them wait for others to the same peer.
    pub(super) fn post_step(
        &mut self,
        link: &mut Link,
        mut flight: Flight,
        works: &[Work<'static>],
    ) -> io::Result<()> {
        if !self.gathers {
            return self.post(link, flight, works);
        }
        let mut posted = Ok(());
        if link.chain.works.len() + works.len() > CHAIN_MAX {
            posted = self.post_chain(link);
        }
        self.count(link, &mut flight, works.len());
        if link.chain.works.is_empty() {
            self.gathered.push(flight.peer);
        }
        link.chain.works.extend(works);
        link.chain.flights.push(flight);
        posted
    }

    /// Posts what has gathered for a peer.
    pub(super) fn post_chain(&mut self, link: &mut Link) -> io::Result<()> {
        let Some(mut flight) = link.chain.flights.pop() else {
            return Ok(());
        };
        flight.before = std::mem::take(&mut link.chain.flights);
        let id = self.launch(flight);
        let mut works = std::mem::take(&mut link.chain.works);
        if let Some(last) = works.last_mut() {
            *last = signaled(*last, id);
        }
        let posted = self.give(link, &works);
        works.clear();
        link.chain.works = works; // its memory serves the next chain
        posted
    }

    /// Posts bytes that the device copies. `seen`: whether its completion matters.
    pub(super) fn post_inline(
        &mut self,
        link: &mut Link,
        peer: u32,
        bytes: &[u8],
        seen: bool,
    ) -> io::Result<()> {
        let work = Work {
            id: quiet(peer),
            what: What::Inline(bytes),
            signaled: false,
            solicited: true,
        };
        if seen || link.quiet + 1 >= self.signal_every {
            let flight = Flight::new(peer, Cargo::Message { chunk: None }, None);
            return self.post(link, flight, &[work]);
        }
        let before = self.post_chain(link);
        link.used += 1;
        link.quiet += 1;
        self.add(1);
        before.and_then(|()| self.give(link, &[work]))
    }

    fn count(&mut self, link: &mut Link, flight: &mut Flight, works: usize) {
        let requests = u32::try_from(works).unwrap_or(u32::MAX);
        flight.requests = requests + std::mem::take(&mut link.quiet);
        link.used += requests;
        self.add(requests);
    }

    fn give(&self, link: &Link, works: &[Work<'_>]) -> io::Result<()> {
        self.counters.posts.add(1);
        link.qp.as_ref().map_or(Ok(()), |qp| qp.post(works))
    }
}
