//! Target side: admitted messages are moved to or from memory, reported by events, and answered.

use super::{
    EntryId, Interface,
    initiator::counts,
    transmit::{Outgoing, Payload, Then},
    unexpected::Arrival,
};
use crate::{
    atomic,
    event::{Address, EventKind, Fail, List},
    memory::{Memory, Region},
    options::EntryOptions,
    packet::{Answer, Body, Kind, Request, Rest},
};

/// An admitted message.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) arrival: Arrival,
    pub(super) from: Address,
    pub(super) operation: u64,
    pub(super) wants_answer: bool,
    pub(super) entry: EntryId,
    pub(super) list: List,
    pub(super) region: Region,
    pub(super) offset: u64,
    /// Number of the unexpected header; `None` if the message was expected.
    pub(super) header: Option<u64>,
    /// True if a place in the queue is reserved for the event.
    pub(super) reserved: bool,
}

/// A put whose data is incomplete.
#[derive(Debug)]
pub(super) struct Incoming {
    operation: u64,
    length: u64,
    received: u64,
    fail: Fail,
    /// `None` if the message was refused: its data is discarded, and the refusal is sent once all of it has arrived.
    delivery: Option<Delivery>,
    wants_answer: bool,
}

impl<M: Memory> Interface<M> {
    /// Handles an arrived packet. The transport vouches for `from`; the contents are not trusted.
    pub fn handle(&mut self, from: Address, packet: &[u8]) {
        let Some((body, payload)) = packet.split_first_chunk() else {
            return;
        };
        match Body::decode(body) {
            Some(Body::Request(request)) => self.handle_request(from, &request, payload),
            Some(Body::Answer(answer)) => self.handle_answer(from, &answer, payload),
            Some(Body::Rest(rest)) if rest.of_answer => {
                self.handle_answer_rest(from, &rest, payload);
            }
            Some(Body::Rest(rest)) => self.handle_rest(from, &rest, payload),
            None => {}
        }
        self.run_triggered();
    }

    fn handle_request(&mut self, from: Address, request: &Request, payload: &[u8]) {
        self.abandon_incoming(from);
        let admitted = self.admit(from, request);
        match request.kind {
            Kind::Put => self.begin_put(from, request, admitted, payload),
            Kind::Get => match admitted {
                Ok(delivery) => self.serve(delivery),
                Err(fail) => self.refuse(from, request.operation, request.wants_answer, fail),
            },
            Kind::Atomic(..) | Kind::Fetch(..) => match admitted {
                Ok(delivery) => self.combine(delivery, request.kind, payload),
                Err(fail) => self.refuse(from, request.operation, request.wants_answer, fail),
            },
        }
    }

    fn begin_put(
        &mut self,
        from: Address,
        request: &Request,
        admitted: Result<Delivery, Fail>,
        payload: &[u8],
    ) {
        let mut incoming = Incoming {
            operation: request.operation,
            length: request.length,
            received: 0,
            fail: admitted.as_ref().err().copied().unwrap_or(Fail::Ok),
            delivery: admitted.ok(),
            wants_answer: request.wants_answer,
        };
        self.deposit(&mut incoming, 0, payload);
        self.keep_or_finish(from, incoming);
    }

    fn handle_rest(&mut self, from: Address, rest: &Rest, payload: &[u8]) {
        let Some(mut incoming) = self.take_incoming(from) else {
            return;
        };
        if incoming.operation != rest.operation {
            return self.keep_or_finish(from, incoming);
        }
        if rest.broken {
            incoming.fail = Fail::Segv;
            incoming.received = incoming.length;
        } else {
            self.deposit(&mut incoming, rest.offset, payload);
        }
        self.keep_or_finish(from, incoming);
    }

    fn deposit(&mut self, incoming: &mut Incoming, offset: u64, payload: &[u8]) {
        let left = incoming.length - incoming.received;
        if offset != incoming.received || payload.len() as u64 > left {
            incoming.fail = Fail::Undeliverable;
            incoming.received = incoming.length;
            return;
        }
        incoming.received += payload.len() as u64;
        let Some(delivery) = incoming
            .delivery
            .as_ref()
            .filter(|_| incoming.fail == Fail::Ok)
        else {
            return;
        };
        let wanted = delivery.arrival.mlength.saturating_sub(offset);
        let wanted = usize::try_from(wanted)
            .unwrap_or(usize::MAX)
            .min(payload.len());
        let at = delivery.offset.saturating_add(offset);
        let written = match wanted {
            0 => Ok(()),
            _ => delivery
                .region
                .write(&mut self.memory, at, &payload[..wanted]),
        };
        if written.is_err() {
            incoming.fail = Fail::Segv;
        }
    }

    fn keep_or_finish(&mut self, from: Address, incoming: Incoming) {
        if incoming.received < incoming.length {
            self.keep_incoming(from, incoming);
        } else {
            self.finish_put(from, incoming);
        }
    }

    fn finish_put(&mut self, from: Address, incoming: Incoming) {
        match incoming.delivery {
            Some(delivery) => self.complete(delivery, incoming.fail),
            None => self.refuse(
                from,
                incoming.operation,
                incoming.wants_answer,
                incoming.fail,
            ),
        }
    }

    /// Fails the incomplete message of a sender that stopped sending it.
    pub(super) fn abandon_incoming(&mut self, from: Address) {
        if let Some(mut incoming) = self.take_incoming(from) {
            incoming.fail = Fail::Undeliverable;
            self.finish_put(from, incoming);
        }
    }

    /// Answers a get. Data that fits into a packet is read now, so that a later put cannot change it.
    fn serve(&mut self, delivery: Delivery) {
        let len = delivery.arrival.mlength;
        let body = Body::Answer(delivery.answer(Fail::Ok, false));
        let (from, short) = (delivery.from, usize::try_from(len).ok());
        let short = short.filter(|short| *short <= self.config.packet_max);
        let Some(short) = short else {
            let payload = Payload::Region {
                region: delivery.region.clone(),
                offset: delivery.offset,
                len,
            };
            let then = Then::Served(Box::new(delivery));
            return self.enqueue(from, Outgoing::new(body, payload, then));
        };
        let mut bytes = vec![0; short];
        let read = match short {
            0 => Ok(()),
            _ => delivery
                .region
                .read(&mut self.memory, delivery.offset, &mut bytes),
        };
        if read.is_err() {
            let failed = Body::Answer(delivery.answer(Fail::Segv, false));
            self.enqueue(from, Outgoing::new(failed, Payload::None, Then::Nothing));
            return self.complete(delivery, Fail::Segv);
        }
        self.enqueue(
            from,
            Outgoing::new(body, Payload::Bytes(bytes), Then::Nothing),
        );
        self.complete(delivery, Fail::Ok);
    }

    /// Applies an atomic in one step: no other message comes between its read and its write.
    fn combine(&mut self, delivery: Delivery, kind: Kind, payload: &[u8]) {
        let (operator, datatype, operand) = match kind {
            Kind::Fetch(operator, datatype, operand) => (operator, datatype, operand),
            Kind::Atomic(operator, datatype) => (operator, datatype, [0; 32]),
            Kind::Put | Kind::Get => return,
        };
        let whole = payload.len() as u64 == delivery.arrival.rlength;
        let len = usize::try_from(delivery.arrival.mlength)
            .unwrap_or(0)
            .min(payload.len());
        let mut before = vec![0; len];
        let mut fail = if whole { Fail::Ok } else { Fail::Undeliverable };
        if fail == Fail::Ok && len > 0 {
            let size = datatype.size();
            let combine = |at: usize, element: &mut [u8]| {
                let source = &payload[at..][..element.len()];
                atomic::apply(operator, datatype, &operand, element, source);
            };
            let (region, offset) = (&delivery.region, delivery.offset);
            let done = region.update(&mut self.memory, offset, size, &mut before, combine);
            fail = if done.is_ok() { Fail::Ok } else { Fail::Segv };
        }
        if matches!(kind, Kind::Fetch(..)) {
            let body = Body::Answer(delivery.answer(fail, false));
            let payload = if fail == Fail::Ok {
                Payload::Bytes(before)
            } else {
                Payload::None
            };
            self.enqueue(delivery.from, Outgoing::new(body, payload, Then::Nothing));
        }
        self.complete(delivery, fail);
    }

    /// Completes a message: posts its event, answers it, and releases its entry.
    pub(super) fn complete(&mut self, delivery: Delivery, fail: Fail) {
        let pt_index = delivery.arrival.pt_index;
        if let Ok(portal) = self.portal_mut(pt_index) {
            portal.pending -= 1;
        }
        self.news.end = true;
        self.tell_of(&delivery, fail);
        let answered_already = matches!(
            delivery.arrival.kind,
            EventKind::Get | EventKind::FetchAtomic
        );
        if delivery.wants_answer && !answered_already {
            let silent = self.has(delivery.entry, EntryOptions::ACK_DISABLE);
            let body = Body::Answer(delivery.answer(fail, silent));
            self.enqueue(
                delivery.from,
                Outgoing::new(body, Payload::None, Then::Nothing),
            );
        }
        if let Some(linked) = self.entries.get_mut(delivery.entry.0) {
            linked.pending -= 1;
        }
        self.tell_unlinked(delivery.entry);
        match delivery.header {
            Some(header) => self.complete_header(pt_index, header, fail),
            None => self.release(delivery.entry),
        }
    }

    /// Posts and counts the event of a message.
    fn tell_of(&mut self, delivery: &Delivery, fail: Fail) {
        let Some(linked) = self.entries.get(delivery.entry.0) else {
            return;
        };
        let (options, ct, user_ptr) = (linked.entry.options, linked.entry.ct, linked.user_ptr);
        let arrival = &delivery.arrival;
        let mut event = arrival.event(arrival.kind, fail, delivery.list, user_ptr);
        if self.config.habits.short_failures && fail != Fail::Ok {
            event.mlength = 0;
        }
        let eq = self.portal_queue(arrival.pt_index);
        if delivery.reserved {
            self.unreserve(arrival.pt_index, 1);
        }
        if options.shows(EntryOptions::EVENT_COMM_DISABLE, fail) {
            self.post(eq, event);
        }
        if options.has(EntryOptions::EVENT_CT_COMM) {
            let bytes = options.has(EntryOptions::EVENT_CT_BYTES);
            self.count(ct, counts(&event, bytes));
        }
    }

    fn refuse(&mut self, to: Address, operation: u64, wants_answer: bool, fail: Fail) {
        if !wants_answer {
            return;
        }
        let answer = Answer {
            operation,
            fail,
            silent: false,
            list: List::Priority,
            mlength: 0,
            remote_offset: 0,
        };
        self.enqueue(
            to,
            Outgoing::new(Body::Answer(answer), Payload::None, Then::Nothing),
        );
    }

    pub(super) fn has(&self, id: EntryId, options: EntryOptions) -> bool {
        let linked = self.entries.get(id.0);
        linked.is_some_and(|linked| linked.entry.options.has(options))
    }
}

impl Delivery {
    /// Returns the answer; its `remote_offset` is the offset that was used.
    const fn answer(&self, fail: Fail, silent: bool) -> Answer {
        let ok = matches!(fail, Fail::Ok);
        Answer {
            operation: self.operation,
            fail,
            silent,
            list: self.list,
            mlength: if ok { self.arrival.mlength } else { 0 },
            remote_offset: self.offset,
        }
    }
}
