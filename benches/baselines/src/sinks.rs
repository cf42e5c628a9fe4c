//! What the pscom baseline does with reports of Ripstop's driver.

use std::collections::VecDeque;

use ripstop_fabric::driver::{
    CommandFailure, CommandToken, DownCause, PayloadView, Sink, WorldRank,
};

/// Passes the driver's reports on, except for greetings. Keeps reports of peers that are down, because their last messages may
/// not have been handled.
pub(crate) struct DriverSink<'a> {
    pub(crate) sink: &'a mut dyn Sink,
    pub(crate) downs: &'a mut VecDeque<(WorldRank, DownCause)>,
    /// One-sided commands in flight.
    pub(crate) commands: &'a mut u32,
}

impl DriverSink<'_> {
    const fn end_command(&mut self) {
        *self.commands = self.commands.saturating_sub(1);
    }
}

impl Sink for DriverSink<'_> {
    fn message(&mut self, _: WorldRank, _: &[u8], _: PayloadView<'_>) {}

    fn complete(&mut self, token: CommandToken) {
        self.end_command();
        self.sink.complete(token);
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.end_command();
        self.sink.fetched(token, old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.end_command();
        self.sink.failed(token, why);
    }

    fn reached(&mut self, token: CommandToken) {
        self.sink.reached(token);
    }

    fn triggered(&mut self, token: CommandToken) {
        self.sink.triggered(token);
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.downs.push_back((peer, why));
    }
}

/// Ignores all reports, after the runtime has stopped listening.
pub(crate) struct DiscardSink;

impl Sink for DiscardSink {
    fn message(&mut self, _: WorldRank, _: &[u8], _: PayloadView<'_>) {}
    fn complete(&mut self, _: CommandToken) {}
    fn fetched(&mut self, _: CommandToken, _: u64) {}
    fn failed(&mut self, _: CommandToken, _: CommandFailure) {}
    fn reached(&mut self, _: CommandToken) {}
    fn triggered(&mut self, _: CommandToken) {}
    fn peer_down(&mut self, _: WorldRank, _: DownCause) {}
}
