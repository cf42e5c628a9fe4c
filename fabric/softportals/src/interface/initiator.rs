//! Initiator side: operations from their start until their data has left and they are answered.

use std::collections::BTreeSet;

use super::{
    CtId, EqId, MdId, SoftInterface,
    command::{AckRequest, MdOffset, NiCommand, RequestTarget},
    transmit::{PayloadSource, SoftOutMessage, TransmitAction},
};
use crate::{
    atomic::{AtomicDatatype, AtomicOperator},
    counter::SoftCtValue,
    event::{EntryList, EventKind, FullEvent, NiFail, PhysicalId},
    memory::AppMemory,
    options::MdOptions,
    packet::{AnswerHeader, PacketHeader, RequestHeader, SoftRequestKind},
    slab::GenerationalId,
};

/// An operation in flight.
#[derive(Debug)]
pub(super) struct InitiatorOp {
    pub(super) peer: PhysicalId,
    /// Descriptor that the data comes from, in use until the operation has ended.
    put: Option<MdId>,
    /// Memory that fetched data goes to, in use until all of it has arrived.
    get: Option<MdOffset>,
    ack: AckRequest,
    user_ptr: u64,
    length: u64,
    /// True once the data has left, or if there is none.
    sent: bool,
    answer: AnswerState,
}

/// State of an operation's answer.
#[derive(Debug)]
enum AnswerState {
    /// No answer will come, or all of it has arrived.
    Nothing,
    Answer,
    /// The rest of the fetched data.
    Rest {
        answer: AnswerHeader,
        received: u64,
    },
}

/// Fields that all kinds of operations have.
struct RequestParts {
    put: Option<MdOffset>,
    get: Option<MdOffset>,
    remote: RequestTarget,
    ack: AckRequest,
    kind: SoftRequestKind,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Starts a command that was checked before.
    pub(super) fn initiate(&mut self, command: NiCommand) {
        let Some(parts) = parts(command) else { return };
        let Ok(peer) = self.resolve(parts.remote.peer) else {
            return;
        };
        let length = parts.remote.length;
        let wants_answer = parts.get.is_some() || parts.ack != AckRequest::No;
        let operation = self.operations.insert(InitiatorOp {
            peer,
            put: parts.put.map(|put| put.md),
            get: parts.get,
            ack: parts.ack,
            user_ptr: parts.remote.user_ptr,
            length,
            sent: parts.put.is_none(),
            answer: if wants_answer {
                AnswerState::Answer
            } else {
                AnswerState::Nothing
            },
        });
        for local in [parts.put, parts.get].into_iter().flatten() {
            self.use_md(local.md);
        }
        let request = RequestHeader {
            operation: operation.bits(),
            kind: parts.kind,
            wants_answer,
            uid: self.config.uid,
            rank: self.rank.unwrap_or(u32::MAX),
            pt_index: parts.remote.pt_index,
            match_bits: parts.remote.match_bits,
            hdr_data: parts.remote.hdr_data,
            remote_offset: parts.remote.offset,
            length,
        };
        let payload = parts
            .put
            .map_or(PayloadSource::None, |put| self.payload(put, length));
        let then = parts
            .put
            .map_or(TransmitAction::Nothing, |_| TransmitAction::Sent(operation));
        self.lanes.enqueue(
            peer,
            SoftOutMessage::new(PacketHeader::Request(request), payload, then),
        );
    }

    /// Returns the payload of an operation.
    ///
    /// The bytes of a volatile descriptor are copied immediately. If they cannot be read, the error is reported when the message
    /// leaves.
    fn payload(&mut self, local: MdOffset, length: u64) -> PayloadSource {
        let Some(descriptor) = self.descriptors.get(local.md.0) else {
            return PayloadSource::None;
        };
        let region = descriptor.md.region.clone();
        let short = length <= self.config.limits.max_volatile_size;
        if short && descriptor.md.options.has(MdOptions::VOLATILE) {
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            if region
                .read(&mut self.memory, local.offset, &mut bytes)
                .is_ok()
            {
                return PayloadSource::Bytes(bytes);
            }
        }
        PayloadSource::Region {
            region,
            offset: local.offset,
            len: length,
        }
    }

    /// Handles the end of sending: the data of `id` has left, or never will.
    ///
    /// Every requested event must be posted once, so a failure here also fails the answer.
    pub(super) fn handle_sent(&mut self, id: GenerationalId, fail: NiFail) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        operation.sent = true;
        let (put, length) = (operation.put, operation.length);
        let mut event = FullEvent::new(EventKind::Send, fail, operation.user_ptr);
        event.mlength = length;
        if let Some(md) = put {
            self.tell(md, &event, MdOptions::EVENT_CT_SEND);
        }
        if fail != NiFail::Ok && !self.tells_by_send_alone(id) {
            self.fail_answer(id, fail);
        }
        self.end_if_done(id);
    }

    /// Returns true if the SEND event alone reports a send failure, and stops waiting for the answer.
    fn tells_by_send_alone(&mut self, id: GenerationalId) -> bool {
        let alone = self.config.habits.send_alone;
        if let Some(operation) = self.operations.get_mut(id)
            && alone
            && operation.get.is_none()
        {
            operation.answer = AnswerState::Nothing;
            return true;
        }
        false
    }

    /// Completes an operation whose answer will not come.
    fn fail_answer(&mut self, id: GenerationalId, fail: NiFail) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let awaited = std::mem::replace(&mut operation.answer, AnswerState::Nothing);
        let get = operation.get;
        let failed = AnswerHeader {
            operation: id.bits(),
            fail,
            silent: false,
            list: EntryList::Priority,
            mlength: 0,
            remote_offset: 0,
        };
        match get {
            _ if matches!(awaited, AnswerState::Nothing) => {}
            Some(get) => self.reply(id, get.md, &failed),
            None => self.acknowledge(id, &failed),
        }
    }

    /// Handles an answer or its first part.
    pub(super) fn handle_answer(
        &mut self,
        from: PhysicalId,
        answer: &AnswerHeader,
        payload: &[u8],
    ) {
        let id = GenerationalId::from_bits(answer.operation);
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        if operation.peer != from || !matches!(operation.answer, AnswerState::Answer) {
            return;
        }
        let mut answer = *answer;
        if answer.mlength > operation.length {
            answer.fail = NiFail::Undeliverable;
        }
        if operation.get.is_none() {
            operation.answer = AnswerState::Nothing;
            self.acknowledge(id, &answer);
        } else {
            operation.answer = AnswerState::Rest {
                answer,
                received: 0,
            };
            self.receive(id, 0, payload);
        }
    }

    /// Handles a further part of fetched data.
    pub(super) fn handle_answer_rest(
        &mut self,
        from: PhysicalId,
        rest: &crate::packet::ContinuationHeader,
        payload: &[u8],
    ) {
        let id = GenerationalId::from_bits(rest.operation);
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let AnswerState::Rest { answer, .. } = &mut operation.answer else {
            return;
        };
        if operation.peer != from {
            return;
        }
        if rest.broken {
            answer.fail = NiFail::Segv;
        }
        self.receive(id, rest.offset, payload);
    }

    fn receive(&mut self, id: GenerationalId, offset: u64, payload: &[u8]) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let (Some(get), AnswerState::Rest { answer, received }) =
            (operation.get, &mut operation.answer)
        else {
            return;
        };
        let room = answer.mlength.saturating_sub(*received);
        if offset != *received || payload.len() as u64 > room {
            answer.fail = NiFail::Undeliverable;
        }
        if answer.fail == NiFail::Ok {
            let region = self
                .descriptors
                .get(get.md.0)
                .map(|md| md.md.region.clone());
            let written =
                region.map(|region| region.write(&mut self.memory, get.offset + offset, payload));
            if written != Some(Ok(())) {
                answer.fail = NiFail::Segv;
            }
        }
        *received += payload.len() as u64;
        if *received >= answer.mlength || answer.fail != NiFail::Ok {
            let answer = *answer;
            operation.answer = AnswerState::Nothing;
            self.reply(id, get.md, &answer);
        }
    }

    fn reply(&mut self, id: GenerationalId, md: MdId, answer: &AnswerHeader) {
        let Some(user_ptr) = self.operations.get(id).map(|operation| operation.user_ptr) else {
            return;
        };
        let mut event = FullEvent::new(EventKind::Reply, answer.fail, user_ptr);
        event.mlength = answer.mlength;
        event.remote_offset = answer.remote_offset;
        event.list = answer.list;
        self.tell(md, &event, MdOptions::EVENT_CT_REPLY);
        self.unuse_md(md);
        self.forget_get(id);
        self.end_if_done(id);
    }

    fn acknowledge(&mut self, id: GenerationalId, answer: &AnswerHeader) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let (md, ack, length) = (operation.put, operation.ack, operation.length);
        let mut event = FullEvent::new(EventKind::Ack, answer.fail, operation.user_ptr);
        event.mlength = if ack == AckRequest::Completed {
            length
        } else {
            answer.mlength
        };
        event.remote_offset = answer.remote_offset;
        event.list = answer.list;
        if let (Some(md), false) = (md, answer.silent) {
            if ack == AckRequest::Full {
                self.tell(md, &event, MdOptions::EVENT_CT_ACK);
            } else {
                self.tell_counter(md, &event, MdOptions::EVENT_CT_ACK);
            }
        }
        self.end_if_done(id);
    }

    /// Ends all operations to and from a lost peer.
    ///
    /// A request of which nothing has left yet may be meant for a successor of the peer, so it is retried once. O(operations in
    /// flight).
    pub fn handle_lost(&mut self, peer: PhysicalId) {
        let spared = self.lanes.spare_requests(peer);
        let kept: BTreeSet<GenerationalId> = spared
            .iter()
            .filter_map(SoftOutMessage::operation)
            .collect();
        let ends = !self.config.habits.ends_never;
        let lost = self
            .operations
            .iter()
            .filter(|(id, operation)| ends && operation.peer == peer && !kept.contains(id));
        let lost: Vec<GenerationalId> = lost.map(|(id, _)| id).collect();
        self.drop_lane(peer);
        for id in lost {
            if self
                .operations
                .get(id)
                .is_some_and(|operation| !operation.sent)
            {
                self.handle_sent(id, NiFail::Undeliverable);
            }
            self.fail_answer(id, NiFail::Undeliverable);
            self.end_if_done(id);
        }
        for message in spared {
            self.lanes.enqueue(peer, message);
        }
        self.run_triggered();
    }

    fn forget_get(&mut self, id: GenerationalId) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.get = None;
        }
    }

    fn end_if_done(&mut self, id: GenerationalId) {
        let operation = self.operations.get(id);
        let done = operation.is_some_and(|operation| {
            operation.sent && matches!(operation.answer, AnswerState::Nothing)
        });
        if !done {
            return;
        }
        let ended = self.operations.remove(id);
        if let Some(md) = ended.and_then(|ended| ended.put) {
            self.unuse_md(md);
        }
    }

    fn use_md(&mut self, md: MdId) {
        if let Some(descriptor) = self.descriptors.get_mut(md.0) {
            descriptor.users += 1;
        }
    }

    fn unuse_md(&mut self, md: MdId) {
        if let Some(descriptor) = self.descriptors.get_mut(md.0) {
            descriptor.users -= 1;
        }
    }

    /// Posts and counts an event of a descriptor, as its options say.
    fn tell(&mut self, md: MdId, event: &FullEvent, counted: MdOptions) {
        let Some((eq, _, options)) = self.md_listeners(md) else {
            return;
        };
        let ok = event.fail == NiFail::Ok;
        let hidden = ok && options.has(MdOptions::EVENT_SUCCESS_DISABLE)
            || event.kind == EventKind::Send
                && options.has(MdOptions::EVENT_SEND_DISABLE)
                && (ok || !self.config.habits.send_alone);
        if !hidden {
            self.post(eq, *event);
        }
        self.tell_counter(md, event, counted);
    }

    fn tell_counter(&mut self, md: MdId, event: &FullEvent, counted: MdOptions) {
        let Some((_, ct, options)) = self.md_listeners(md) else {
            return;
        };
        if options.has(counted) {
            let bytes = options.has(MdOptions::EVENT_CT_BYTES);
            self.count(ct, counts(event, bytes));
        }
    }

    fn md_listeners(&self, md: MdId) -> Option<(Option<EqId>, Option<CtId>, MdOptions)> {
        let md = &self.descriptors.get(md.0)?.md;
        Some((md.eq, md.ct, md.options))
    }
}

/// Returns the increment that an event adds to a counter. A failure always counts as one.
pub(super) const fn counts(event: &FullEvent, bytes: bool) -> SoftCtValue {
    match event.fail {
        NiFail::Ok => SoftCtValue {
            success: if bytes { event.mlength } else { 1 },
            failure: 0,
        },
        _ => SoftCtValue {
            success: 0,
            failure: 1,
        },
    }
}

fn parts(command: NiCommand) -> Option<RequestParts> {
    let fetch = |get, put, remote, operator: AtomicOperator, datatype: AtomicDatatype, operand| {
        RequestParts {
            put: Some(put),
            get: Some(get),
            remote,
            ack: AckRequest::No,
            kind: SoftRequestKind::Fetch(operator, datatype, operand),
        }
    };
    Some(match command {
        NiCommand::Put(put, remote, ack) => RequestParts {
            put: Some(put),
            get: None,
            remote,
            ack,
            kind: SoftRequestKind::Put,
        },
        NiCommand::Get(get, remote) => RequestParts {
            put: None,
            get: Some(get),
            remote,
            ack: AckRequest::No,
            kind: SoftRequestKind::Get,
        },
        NiCommand::Atomic(put, remote, ack, operator, datatype) => RequestParts {
            put: Some(put),
            get: None,
            remote,
            ack,
            kind: SoftRequestKind::Atomic(operator, datatype),
        },
        NiCommand::FetchAtomic(get, put, remote, operator, datatype) => {
            fetch(get, put, remote, operator, datatype, [0; 32])
        }
        NiCommand::Swap(get, put, remote, operator, datatype, operand) => {
            fetch(get, put, remote, operator, datatype, operand)
        }
        NiCommand::CtInc(..) | NiCommand::CtSet(..) => return None,
    })
}
