//! Initiator side: operations from their start until their data has left and they are answered.

use std::collections::BTreeSet;

use super::{
    CtId, EqId, Interface, MdId,
    command::{Ack, Command, Local, Remote},
    transmit::{Outgoing, Payload, Then},
};
use crate::{
    atomic::{Datatype, Operator},
    counter::Count,
    event::{Address, Event, EventKind, Fail, List},
    memory::Memory,
    options::MdOptions,
    packet::{Answer, Body, Kind, Request},
    slab::Id,
};

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) peer: Address,
    /// Descriptor that the data comes from, in use until the operation has ended.
    put: Option<MdId>,
    /// Memory that fetched data goes to, in use until all of it has arrived.
    get: Option<Local>,
    ack: Ack,
    user_ptr: u64,
    length: u64,
    /// True once the data has left, or if there is none.
    sent: bool,
    answer: Awaited,
}

/// State of an operation's answer.
#[derive(Debug)]
enum Awaited {
    /// No answer will come, or all of it has arrived.
    Nothing,
    Answer,
    /// The rest of the fetched data.
    Rest {
        answer: Answer,
        received: u64,
    },
}

/// Fields that all kinds of operations have.
struct Parts {
    put: Option<Local>,
    get: Option<Local>,
    remote: Remote,
    ack: Ack,
    kind: Kind,
}

impl<M: Memory> Interface<M> {
    /// Starts a command that was checked before.
    pub(super) fn initiate(&mut self, command: Command) {
        let Some(parts) = parts(command) else { return };
        let Ok(peer) = self.resolve(parts.remote.peer) else {
            return;
        };
        let length = parts.remote.length;
        let wants_answer = parts.get.is_some() || parts.ack != Ack::No;
        let operation = self.operations.insert(Operation {
            peer,
            put: parts.put.map(|put| put.md),
            get: parts.get,
            ack: parts.ack,
            user_ptr: parts.remote.user_ptr,
            length,
            sent: parts.put.is_none(),
            answer: if wants_answer {
                Awaited::Answer
            } else {
                Awaited::Nothing
            },
        });
        for local in [parts.put, parts.get].into_iter().flatten() {
            self.use_md(local.md);
        }
        let request = Request {
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
            .map_or(Payload::None, |put| self.payload(put, length));
        let then = parts.put.map_or(Then::Nothing, |_| Then::Sent(operation));
        self.enqueue(peer, Outgoing::new(Body::Request(request), payload, then));
    }

    /// Returns the payload of an operation.
    ///
    /// The bytes of a volatile descriptor are copied immediately. If they cannot be read, the error is reported when the message
    /// leaves.
    fn payload(&mut self, local: Local, length: u64) -> Payload {
        let Some(descriptor) = self.descriptors.get(local.md.0) else {
            return Payload::None;
        };
        let region = descriptor.md.region.clone();
        let short = length <= self.config.limits.max_volatile_size;
        if short && descriptor.md.options.has(MdOptions::VOLATILE) {
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            if region
                .read(&mut self.memory, local.offset, &mut bytes)
                .is_ok()
            {
                return Payload::Bytes(bytes);
            }
        }
        Payload::Region {
            region,
            offset: local.offset,
            len: length,
        }
    }

    /// Handles the end of sending: the data of `id` has left, or never will.
    ///
    /// Every requested event must be posted once, so a failure here also fails the answer.
    pub(super) fn handle_sent(&mut self, id: Id, fail: Fail) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        operation.sent = true;
        let (put, length) = (operation.put, operation.length);
        let mut event = Event::new(EventKind::Send, fail, operation.user_ptr);
        event.mlength = length;
        if let Some(md) = put {
            self.tell(md, &event, MdOptions::EVENT_CT_SEND);
        }
        if fail != Fail::Ok && !self.tells_by_send_alone(id) {
            self.fail_answer(id, fail);
        }
        self.end_if_done(id);
    }

    /// Returns true if the SEND event alone reports a send failure, and stops waiting for the answer.
    fn tells_by_send_alone(&mut self, id: Id) -> bool {
        let alone = self.config.habits.send_alone;
        if let Some(operation) = self.operations.get_mut(id)
            && alone
            && operation.get.is_none()
        {
            operation.answer = Awaited::Nothing;
            return true;
        }
        false
    }

    /// Completes an operation whose answer will not come.
    fn fail_answer(&mut self, id: Id, fail: Fail) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let awaited = std::mem::replace(&mut operation.answer, Awaited::Nothing);
        let get = operation.get;
        let failed = Answer {
            operation: id.bits(),
            fail,
            silent: false,
            list: List::Priority,
            mlength: 0,
            remote_offset: 0,
        };
        match get {
            _ if matches!(awaited, Awaited::Nothing) => {}
            Some(get) => self.reply(id, get.md, &failed),
            None => self.acknowledge(id, &failed),
        }
    }

    /// Handles an answer or its first part.
    pub(super) fn handle_answer(&mut self, from: Address, answer: &Answer, payload: &[u8]) {
        let id = Id::from_bits(answer.operation);
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        if operation.peer != from || !matches!(operation.answer, Awaited::Answer) {
            return;
        }
        let mut answer = *answer;
        if answer.mlength > operation.length {
            answer.fail = Fail::Undeliverable;
        }
        if operation.get.is_none() {
            operation.answer = Awaited::Nothing;
            self.acknowledge(id, &answer);
        } else {
            operation.answer = Awaited::Rest {
                answer,
                received: 0,
            };
            self.receive(id, 0, payload);
        }
    }

    /// Handles a further part of fetched data.
    pub(super) fn handle_answer_rest(
        &mut self,
        from: Address,
        rest: &crate::packet::Rest,
        payload: &[u8],
    ) {
        let id = Id::from_bits(rest.operation);
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let Awaited::Rest { answer, .. } = &mut operation.answer else {
            return;
        };
        if operation.peer != from {
            return;
        }
        if rest.broken {
            answer.fail = Fail::Segv;
        }
        self.receive(id, rest.offset, payload);
    }

    fn receive(&mut self, id: Id, offset: u64, payload: &[u8]) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let (Some(get), Awaited::Rest { answer, received }) =
            (operation.get, &mut operation.answer)
        else {
            return;
        };
        let room = answer.mlength.saturating_sub(*received);
        if offset != *received || payload.len() as u64 > room {
            answer.fail = Fail::Undeliverable;
        }
        if answer.fail == Fail::Ok {
            let region = self
                .descriptors
                .get(get.md.0)
                .map(|md| md.md.region.clone());
            let written =
                region.map(|region| region.write(&mut self.memory, get.offset + offset, payload));
            if written != Some(Ok(())) {
                answer.fail = Fail::Segv;
            }
        }
        *received += payload.len() as u64;
        if *received >= answer.mlength || answer.fail != Fail::Ok {
            let answer = *answer;
            operation.answer = Awaited::Nothing;
            self.reply(id, get.md, &answer);
        }
    }

    fn reply(&mut self, id: Id, md: MdId, answer: &Answer) {
        let Some(user_ptr) = self.operations.get(id).map(|operation| operation.user_ptr) else {
            return;
        };
        let mut event = Event::new(EventKind::Reply, answer.fail, user_ptr);
        event.mlength = answer.mlength;
        event.remote_offset = answer.remote_offset;
        event.list = answer.list;
        self.tell(md, &event, MdOptions::EVENT_CT_REPLY);
        self.unuse_md(md);
        self.forget_get(id);
        self.end_if_done(id);
    }

    fn acknowledge(&mut self, id: Id, answer: &Answer) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let (md, ack, length) = (operation.put, operation.ack, operation.length);
        let mut event = Event::new(EventKind::Ack, answer.fail, operation.user_ptr);
        event.mlength = if ack == Ack::Completed {
            length
        } else {
            answer.mlength
        };
        event.remote_offset = answer.remote_offset;
        event.list = answer.list;
        if let (Some(md), false) = (md, answer.silent) {
            if ack == Ack::Full {
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
    pub fn handle_lost(&mut self, peer: Address) {
        let spared = self.spare_requests(peer);
        let kept: BTreeSet<Id> = spared.iter().filter_map(Outgoing::operation).collect();
        let ends = !self.config.habits.ends_never;
        let lost = self
            .operations
            .iter()
            .filter(|(id, operation)| ends && operation.peer == peer && !kept.contains(id));
        let lost: Vec<Id> = lost.map(|(id, _)| id).collect();
        self.drop_lane(peer);
        for id in lost {
            if self
                .operations
                .get(id)
                .is_some_and(|operation| !operation.sent)
            {
                self.handle_sent(id, Fail::Undeliverable);
            }
            self.fail_answer(id, Fail::Undeliverable);
            self.end_if_done(id);
        }
        for message in spared {
            self.enqueue(peer, message);
        }
        self.run_triggered();
    }

    fn forget_get(&mut self, id: Id) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.get = None;
        }
    }

    fn end_if_done(&mut self, id: Id) {
        let operation = self.operations.get(id);
        let done = operation.is_some_and(|operation| {
            operation.sent && matches!(operation.answer, Awaited::Nothing)
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
    fn tell(&mut self, md: MdId, event: &Event, counted: MdOptions) {
        let Some((eq, _, options)) = self.md_listeners(md) else {
            return;
        };
        let ok = event.fail == Fail::Ok;
        let hidden = ok && options.has(MdOptions::EVENT_SUCCESS_DISABLE)
            || event.kind == EventKind::Send
                && options.has(MdOptions::EVENT_SEND_DISABLE)
                && (ok || !self.config.habits.send_alone);
        if !hidden {
            self.post(eq, *event);
        }
        self.tell_counter(md, event, counted);
    }

    fn tell_counter(&mut self, md: MdId, event: &Event, counted: MdOptions) {
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
pub(super) const fn counts(event: &Event, bytes: bool) -> Count {
    match event.fail {
        Fail::Ok => Count {
            success: if bytes { event.mlength } else { 1 },
            failure: 0,
        },
        _ => Count {
            success: 0,
            failure: 1,
        },
    }
}

fn parts(command: Command) -> Option<Parts> {
    let fetch = |get, put, remote, operator: Operator, datatype: Datatype, operand| Parts {
        put: Some(put),
        get: Some(get),
        remote,
        ack: Ack::No,
        kind: Kind::Fetch(operator, datatype, operand),
    };
    Some(match command {
        Command::Put(put, remote, ack) => Parts {
            put: Some(put),
            get: None,
            remote,
            ack,
            kind: Kind::Put,
        },
        Command::Get(get, remote) => Parts {
            put: None,
            get: Some(get),
            remote,
            ack: Ack::No,
            kind: Kind::Get,
        },
        Command::Atomic(put, remote, ack, operator, datatype) => Parts {
            put: Some(put),
            get: None,
            remote,
            ack,
            kind: Kind::Atomic(operator, datatype),
        },
        Command::FetchAtomic(get, put, remote, operator, datatype) => {
            fetch(get, put, remote, operator, datatype, [0; 32])
        }
        Command::Swap(get, put, remote, operator, datatype, operand) => {
            fetch(get, put, remote, operator, datatype, operand)
        }
        Command::CtInc(..) | Command::CtSet(..) => return None,
    })
}
