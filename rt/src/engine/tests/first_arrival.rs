//! The first arrival of a driver that cannot look for one by its header.

use ripstop_fabric::driver::{
    AwaitedLook, AwaitedMessage, CommandFailure, CommandToken, DownCause, Driver, PayloadView, Sink,
};

use crate::group::WorldRank;

/// A message that was taken from the driver, and that nothing else knows of yet.
#[derive(Debug, Default)]
pub(super) struct FirstArrival(Option<(WorldRank, Vec<u8>, Vec<u8>)>);

impl FirstArrival {
    /// Takes the driver's first message if it is the awaited one. Otherwise keeps it.
    pub(super) fn take_awaited(
        &mut self,
        driver: &mut dyn Driver,
        awaited: AwaitedMessage,
    ) -> AwaitedLook {
        if self.0.is_none() {
            let _kept = driver.progress(1, self);
        }
        let Some((_, header, body)) = &self.0 else {
            return AwaitedLook::Nothing;
        };
        let first = header.as_slice().try_into().ok();
        let first = first.and_then(|header| awaited.header.first_word_of(header));
        match first.filter(|_| body.len() == awaited.body.len()) {
            Some(first) => {
                awaited.body.fill(PayloadView::from_slice(body));
                self.0 = None;
                AwaitedLook::Copied(first)
            }
            None => AwaitedLook::Other,
        }
    }

    /// Hands the message that was kept to `sink`, if there is one. Returns the number of messages.
    pub(super) fn hand_to(&mut self, sink: &mut dyn Sink) -> u32 {
        let Some((from, header, body)) = self.0.take() else {
            return 0;
        };
        sink.message(from, &header, PayloadView::from_slice(&body));
        1
    }
}

/// Takes messages only: the tests that look for messages make nothing else happen meanwhile.
impl Sink for FirstArrival {
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        self.0 = Some((from, header.to_vec(), body.to_vec()));
    }

    fn complete(&mut self, token: CommandToken) {
        unreachable!("{token:?} is complete");
    }

    fn fetched(&mut self, token: CommandToken, _: u64) {
        unreachable!("{token:?} has fetched");
    }

    fn failed(&mut self, token: CommandToken, _: CommandFailure) {
        unreachable!("{token:?} has failed");
    }

    fn reached(&mut self, token: CommandToken) {
        unreachable!("{token:?} is reached");
    }

    fn triggered(&mut self, token: CommandToken) {
        unreachable!("{token:?} is triggered");
    }

    fn peer_down(&mut self, peer: WorldRank, _: DownCause) {
        unreachable!("{peer:?} is down");
    }
}
