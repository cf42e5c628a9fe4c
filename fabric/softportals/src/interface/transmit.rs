//! Outgoing messages: cut into packets as the transport takes them, and read from memory only then.

use std::collections::{BTreeSet, VecDeque};

use super::{NiConfig, SoftInterface, target::AdmittedMessage};
use crate::{
    event::{NiFail, PhysicalId},
    memory::{AccessFault, AppMemory, SoftRegion},
    packet::{AnswerHeader, ContinuationHeader, PacketHeader, SoftRequestKind},
    slab::GenerationalId,
};

/// Path to other interfaces, and to this one itself.
pub trait PacketLink {
    /// Returns true if a packet to `peer` can be taken now.
    fn has_room(&mut self, peer: PhysicalId) -> bool;
    /// Sends a packet to `peer`. The caller has checked that there is room.
    fn send(&mut self, peer: PhysicalId, packet: SoftPacket<'_>);
}

/// An outgoing packet. The receiver passes header and data, concatenated, to [`SoftInterface::handle`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SoftPacket<'a> {
    /// The header.
    pub head: &'a [u8],
    /// The data.
    pub payload: &'a [u8],
}

/// A message that has not left completely.
#[derive(Debug)]
pub(super) struct SoftOutMessage {
    body: PacketHeader,
    payload: PayloadSource,
    sent: u64,
    begun: bool,
    /// True if the peer was lost before this message began, and the message was kept once.
    spared: bool,
    then: TransmitAction,
}

/// Location of a message's data.
#[derive(Debug)]
pub(super) enum PayloadSource {
    None,
    Bytes(Vec<u8>),
    Region {
        region: SoftRegion,
        offset: u64,
        len: u64,
    },
}

/// Action once the last packet has left.
#[derive(Debug)]
pub(super) enum TransmitAction {
    Nothing,
    /// Reports that an operation's data was sent.
    Sent(GenerationalId),
    /// Completes a served get.
    Served(Box<AdmittedMessage>),
}

impl<M: AppMemory> SoftInterface<M> {
    /// Sends packets by `link` while it has room, one packet per peer in turn. Returns true if at least one was sent.
    pub fn transmit(&mut self, link: &mut impl PacketLink) -> bool {
        let mut sent = false;
        while self.transmit_ready(link, &mut sent) {
            // Sent and failed messages are counted, and a count may trigger further operations.
            self.run_triggered();
        }
        sent
    }

    /// Sends until `link` is full. Returns true if it had room for any message.
    fn transmit_ready(&mut self, link: &mut impl PacketLink, sent: &mut bool) -> bool {
        let mut full = VecDeque::new();
        let mut any = false;
        while let Some(peer) = self.lanes.next_ready() {
            if !link.has_room(peer) {
                full.push_back(peer);
                continue;
            }
            any = true;
            *sent |= self.transmit_one(peer, link);
            self.lanes.end_turn(peer);
        }
        self.lanes.wait_for_room(full);
        any
    }

    /// Returns true if messages wait for the transport.
    pub fn has_output(&self) -> bool {
        self.lanes.has_output()
    }

    /// Returns true if any peer owes an answer, the rest of a message, or room.
    pub fn awaits_answers(&self) -> bool {
        self.operations.len() > 0 || !self.lanes.is_empty()
    }

    /// Returns the peers that owe an answer, the rest of a message, or room.
    pub fn awaited(&self) -> BTreeSet<PhysicalId> {
        let operations = self.operations.iter().map(|(_, operation)| operation.peer);
        operations.chain(self.lanes.peers()).collect()
    }

    /// Returns true if a packet carries only data, so its receiver need not be woken before or after it.
    pub fn is_data_alone(packet: &[u8]) -> bool {
        let body = packet.first_chunk().and_then(PacketHeader::decode);
        matches!(body, Some(PacketHeader::Continuation(rest)) if !rest.last && !rest.broken)
    }

    /// Returns true if a packet begins a message whose data follows in other packets.
    pub fn has_data_behind(packet: &[u8]) -> bool {
        let Some((body, payload)) = packet.split_first_chunk() else {
            return false;
        };
        let here = payload.len() as u64;
        match PacketHeader::decode(body) {
            Some(PacketHeader::Request(request)) => {
                request.kind == SoftRequestKind::Put && request.length > here
            }
            Some(PacketHeader::Answer(answer)) => answer.mlength > here && here == 0,
            _ => false,
        }
    }

    fn transmit_one(&mut self, peer: PhysicalId, link: &mut impl PacketLink) -> bool {
        let Some(mut message) = self.lanes.next_message(peer) else {
            return false;
        };
        let mut payload = std::mem::take(&mut self.packet);
        let room = message.room(&self.config);
        let read = message.read(&mut self.memory, room, &mut payload);
        let sends = read.is_ok() || message.begun || message.is_answer();
        if read.is_err() {
            payload.clear();
        }
        if sends {
            let last = message.sent + payload.len() as u64 >= message.payload.len();
            let head = message.head(read.is_err(), last).encode();
            let packet = SoftPacket {
                head: &head,
                payload: &payload,
            };
            link.send(peer, packet);
        }
        message.begun = true;
        message.sent += payload.len() as u64;
        self.packet = payload;
        if read.is_err() {
            self.sent(message.then, NiFail::Segv);
        } else if message.sent < message.payload.len() {
            self.lanes.put_back(peer, message);
        } else {
            self.sent(message.then, NiFail::Ok);
        }
        sends
    }

    fn sent(&mut self, then: TransmitAction, fail: NiFail) {
        match then {
            TransmitAction::Nothing => {}
            TransmitAction::Sent(operation) => self.handle_sent(operation, fail),
            TransmitAction::Served(delivery) => self.complete(*delivery, fail),
        }
    }

    /// Drops the messages that wait for a peer, and completes with an error the ones that had begun.
    pub(super) fn drop_lane(&mut self, peer: PhysicalId) {
        self.abandon_incoming(peer);
        for message in self.lanes.remove(peer) {
            if let TransmitAction::Served(delivery) = message.then {
                self.complete(*delivery, NiFail::Undeliverable);
            }
        }
        // Completing the deliveries above may have queued answers to this peer, which no longer have a receiver.
        self.lanes.remove(peer);
    }
}

impl SoftOutMessage {
    pub(super) const fn new(
        body: PacketHeader,
        payload: PayloadSource,
        then: TransmitAction,
    ) -> Self {
        Self {
            body,
            payload,
            sent: 0,
            begun: false,
            spared: false,
            then,
        }
    }

    /// Returns the operation of a request.
    pub(super) const fn operation(&self) -> Option<GenerationalId> {
        match &self.body {
            PacketHeader::Request(request) => Some(GenerationalId::from_bits(request.operation)),
            _ => None,
        }
    }

    /// Returns true if the message may be kept although its peer was lost: it has not begun, and was not kept before.
    pub(super) const fn may_be_spared(&self) -> bool {
        !self.begun && !self.spared
    }

    pub(super) const fn spare(&mut self) {
        self.spared = true;
    }

    pub(super) const fn is_answer(&self) -> bool {
        matches!(self.body, PacketHeader::Answer(_))
    }

    /// Returns the data bytes that the next packet may carry. With `inline_max`, the first packet of a longer message carries no
    /// data. An atomic is never cut.
    fn room(&self, config: &NiConfig) -> usize {
        let atomic = match &self.body {
            PacketHeader::Request(request) => {
                !matches!(request.kind, SoftRequestKind::Put | SoftRequestKind::Get)
            }
            _ => false,
        };
        match config.inline_max {
            Some(most) if !self.begun && !atomic && self.payload.len() > most as u64 => 0,
            _ => config.packet_max,
        }
    }

    /// Fills `into` with the data of the next packet.
    fn read<M: AppMemory>(
        &self,
        memory: &mut M,
        room: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), AccessFault> {
        let left = self.payload.len() - self.sent;
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(room);
        into.clear();
        match &self.payload {
            PayloadSource::None => Ok(()),
            PayloadSource::Bytes(bytes) => {
                let rest = usize::try_from(self.sent)
                    .ok()
                    .and_then(|sent| bytes.get(sent..));
                into.extend_from_slice(&rest.ok_or(AccessFault)?[..len]);
                Ok(())
            }
            PayloadSource::Region { region, offset, .. } => {
                into.resize(len, 0);
                region.read(memory, offset + self.sent, into)
            }
        }
    }

    /// Returns the header of the next packet. `broken`: its data cannot be read.
    const fn head(&self, broken: bool, last: bool) -> PacketHeader {
        match &self.body {
            PacketHeader::Answer(answer) if !self.begun && broken => {
                PacketHeader::Answer(AnswerHeader {
                    fail: NiFail::Segv,
                    mlength: 0,
                    ..*answer
                })
            }
            body if !self.begun => *body,
            PacketHeader::Answer(answer) => PacketHeader::Continuation(ContinuationHeader {
                operation: answer.operation,
                of_answer: true,
                broken,
                last,
                offset: self.sent,
            }),
            PacketHeader::Request(request) => PacketHeader::Continuation(ContinuationHeader {
                operation: request.operation,
                of_answer: false,
                broken,
                last,
                offset: self.sent,
            }),
            PacketHeader::Continuation(rest) => PacketHeader::Continuation(*rest),
        }
    }
}

impl PayloadSource {
    const fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Region { len, .. } => *len,
        }
    }
}
