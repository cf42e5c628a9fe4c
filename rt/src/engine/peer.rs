//! What a runtime keeps about each peer: nothing until the first contact.

use std::collections::VecDeque;

use bytemuck::Pod;
use ripstop_fabric::driver::Down;

use crate::{
    clock::Time,
    proto::{
        channel::{Channel, Credits},
        wire::OpId,
    },
};

/// Longest header (an offer).
const FRAME: usize = 112;

/// A message without a body that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    bytes: [u8; FRAME],
    len: u8,
}

/// One peer in contact.
pub(crate) struct Peer {
    pub(crate) down: Option<Down>,
    /// Headers without bodies, in order; they overtake envelopes and need no credits.
    pub(crate) control: VecDeque<Frame>,
    /// Sends whose envelopes wait for room or credits, in order.
    pub(crate) sends: VecDeque<OpId>,
    /// Sends whose bytes go out in fragments.
    pub(crate) fragments: VecDeque<OpId>,
    pub(crate) credits: Credits,
    /// Only on drivers that lose or reorder.
    pub(crate) channel: Option<Channel>,
    /// In the list of peers to flush.
    marked: bool,
}

/// All peers of a job, by world rank.
pub(crate) struct Peers {
    list: Vec<Option<Box<Peer>>>,
    /// Peers for which something waits for room.
    marked: Vec<u32>,
    /// Something was marked since the last flush.
    fresh: bool,
    unexpected_bytes: usize,
    pub(crate) reliable: bool,
    /// Peers with a channel, whose clocks run.
    channels: Vec<u32>,
}

impl Peers {
    pub(crate) fn new(size: u32, unexpected_bytes: usize, reliable: bool) -> Self {
        let list = (0..size).map(|_| None).collect();
        Self {
            list,
            marked: Vec::new(),
            fresh: false,
            unexpected_bytes,
            reliable,
            channels: Vec::new(),
        }
    }

    /// The peer; made at first contact.
    #[inline]
    pub(crate) fn contact(&mut self, rank: u32) -> &mut Peer {
        let size = self.list.len();
        let place = &mut self.list[rank as usize];
        if place.is_none() {
            let channel = (!self.reliable).then(Channel::new);
            if channel.is_some() {
                self.channels.push(rank);
            }
            let credits = Credits::new(self.unexpected_bytes, size);
            *place = Some(Box::new(Peer::new(credits, channel)));
        }
        place.as_mut().expect("just made")
    }

    /// Whether the peer is known to be down.
    pub(crate) fn down(&self, rank: u32) -> Option<Down> {
        self.list.get(rank as usize)?.as_ref()?.down
    }

    /// Something waits for room at this peer.
    pub(crate) fn mark(&mut self, rank: u32) {
        let peer = self.contact(rank);
        let first = !std::mem::replace(&mut peer.marked, true);
        if first {
            self.marked.push(rank);
        }
        self.fresh = true;
    }

    /// The marked peers, to be flushed; those that are still waiting afterwards are given to [`wait`](Self::wait).
    pub(crate) fn take_marked(&mut self) -> Vec<u32> {
        self.fresh = false;
        std::mem::take(&mut self.marked)
    }

    /// Puts the list back with those that found no room.
    pub(crate) fn wait(&mut self, mut stuck: Vec<u32>) {
        stuck.append(&mut self.marked);
        self.marked = stuck;
    }

    pub(crate) fn unmark(&mut self, rank: u32) {
        self.contact(rank).marked = false;
    }

    pub(crate) fn any_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    pub(crate) fn fresh(&self) -> bool {
        self.fresh
    }

    /// Queues a message without a body.
    pub(crate) fn control<H: Pod>(&mut self, rank: u32, header: &H) {
        self.contact(rank).control.push_back(Frame::new(header));
        self.mark(rank);
    }

    /// Peers whose channels must be looked after.
    pub(crate) fn with_channels(&self) -> Vec<u32> {
        self.channels.clone()
    }

    /// Whether a peer may still miss something that was sent.
    pub(crate) fn any_unacked(&self) -> bool {
        let unacked = |rank: &u32| {
            let peer = self.list[*rank as usize].as_ref()?;
            Some(peer.channel.as_ref()?.unacked_len())
        };
        self.channels
            .iter()
            .filter_map(unacked)
            .any(|unacked| unacked > 0)
    }

    /// When the next channel wants to send again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let channel = |rank: &u32| {
            self.list[*rank as usize]
                .as_ref()?
                .channel
                .as_ref()?
                .next_timeout()
        };
        self.channels
            .iter()
            .filter_map(channel)
            .min()
            .map(Time::from_nanos)
    }
}

impl Peer {
    fn new(credits: Credits, channel: Option<Channel>) -> Self {
        Self {
            down: None,
            control: VecDeque::new(),
            sends: VecDeque::new(),
            fragments: VecDeque::new(),
            credits,
            channel,
            marked: false,
        }
    }

    /// Nothing waits in front of a new envelope.
    pub(crate) fn is_clear(&self) -> bool {
        self.sends.is_empty() && self.control.is_empty()
    }
}

impl Frame {
    pub(crate) fn new<H: Pod>(header: &H) -> Self {
        let from = bytemuck::bytes_of(header);
        let mut bytes = [0; FRAME];
        bytes[..from.len()].copy_from_slice(from);
        Self {
            bytes,
            len: u8::try_from(from.len()).expect("headers are short"),
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len as usize]
    }
}
