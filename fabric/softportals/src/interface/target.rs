//! Target side: admitted messages are moved to or from memory, reported by events, and answered.

use super::{
    EntryId, SoftInterface,
    initiator::counts,
    transmit::{PayloadSource, SoftOutMessage, TransmitAction},
    unexpected::ArrivalHeader,
};
use crate::{
    atomic,
    event::{EntryList, EventKind, NiFail, PhysicalId},
    memory::{AppMemory, SoftRegion},
    options::EntryOptions,
    packet::{AnswerHeader, ContinuationHeader, PacketHeader, RequestHeader, SoftRequestKind},
};

/// An admitted message.
#[derive(Debug)]
pub(super) struct AdmittedMessage {
    pub(super) arrival: ArrivalHeader,
    pub(super) from: PhysicalId,
    pub(super) operation: u64,
    pub(super) wants_answer: bool,
    pub(super) entry: EntryId,
    pub(super) list: EntryList,
    pub(super) region: SoftRegion,
    pub(super) offset: u64,
    /// Number of the unexpected header; `None` if the message was expected.
    pub(super) header: Option<u64>,
    /// True if a place in the queue is reserved for the event.
    pub(super) reserved: bool,
}

/// A put whose data is incomplete.
#[derive(Debug)]
pub(super) struct IncompletePut {
    operation: u64,
    length: u64,
    received: u64,
    fail: NiFail,
    /// `None` if the message was refused: its data is discarded, and the refusal is sent once all of it has arrived.
    delivery: Option<AdmittedMessage>,
    wants_answer: bool,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Handles an arrived packet. The transport vouches for `from`; the contents are not trusted.
    pub fn handle(&mut self, from: PhysicalId, packet: &[u8]) {
        let Some((body, payload)) = packet.split_first_chunk() else {
            return;
        };
        match PacketHeader::decode(body) {
            Some(PacketHeader::Request(request)) => self.handle_request(from, &request, payload),
            Some(PacketHeader::Answer(answer)) => self.handle_answer(from, &answer, payload),
            Some(PacketHeader::Continuation(rest)) if rest.of_answer => {
                self.handle_answer_rest(from, &rest, payload);
            }
            Some(PacketHeader::Continuation(rest)) => self.handle_rest(from, &rest, payload),
            None => {}
        }
        self.run_triggered();
    }

    fn handle_request(&mut self, from: PhysicalId, request: &RequestHeader, payload: &[u8]) {
        self.abandon_incoming(from);
        let admitted = self.admit(from, request);
        match request.kind {
            SoftRequestKind::Put => self.begin_put(from, request, admitted, payload),
            SoftRequestKind::Get => match admitted {
                Ok(delivery) => self.serve(delivery),
                Err(fail) => self.refuse(from, request.operation, request.wants_answer, fail),
            },
            SoftRequestKind::Atomic(..) | SoftRequestKind::Fetch(..) => match admitted {
                Ok(delivery) => self.combine(delivery, request.kind, payload),
                Err(fail) => self.refuse(from, request.operation, request.wants_answer, fail),
            },
        }
    }

    fn begin_put(
        &mut self,
        from: PhysicalId,
        request: &RequestHeader,
        admitted: Result<AdmittedMessage, NiFail>,
        payload: &[u8],
    ) {
        let mut incoming = IncompletePut {
            operation: request.operation,
            length: request.length,
            received: 0,
            fail: admitted.as_ref().err().copied().unwrap_or(NiFail::Ok),
            delivery: admitted.ok(),
            wants_answer: request.wants_answer,
        };
        self.deposit(&mut incoming, 0, payload);
        self.keep_or_finish(from, incoming);
    }

    fn handle_rest(&mut self, from: PhysicalId, rest: &ContinuationHeader, payload: &[u8]) {
        let Some(mut incoming) = self.lanes.take_incoming(from) else {
            return;
        };
        if incoming.operation != rest.operation {
            return self.keep_or_finish(from, incoming);
        }
        if rest.broken {
            incoming.fail = NiFail::Segv;
            incoming.received = incoming.length;
        } else {
            self.deposit(&mut incoming, rest.offset, payload);
        }
        self.keep_or_finish(from, incoming);
    }

    fn deposit(&mut self, incoming: &mut IncompletePut, offset: u64, payload: &[u8]) {
        let left = incoming.length - incoming.received;
        if offset != incoming.received || payload.len() as u64 > left {
            incoming.fail = NiFail::Undeliverable;
            incoming.received = incoming.length;
            return;
        }
        incoming.received += payload.len() as u64;
        let Some(delivery) = incoming
            .delivery
            .as_ref()
            .filter(|_| incoming.fail == NiFail::Ok)
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
            incoming.fail = NiFail::Segv;
        }
    }

    fn keep_or_finish(&mut self, from: PhysicalId, incoming: IncompletePut) {
        if incoming.received < incoming.length {
            self.lanes.keep_incoming(from, incoming);
        } else {
            self.finish_put(from, incoming);
        }
    }

    fn finish_put(&mut self, from: PhysicalId, incoming: IncompletePut) {
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
    pub(super) fn abandon_incoming(&mut self, from: PhysicalId) {
        if let Some(mut incoming) = self.lanes.take_incoming(from) {
            incoming.fail = NiFail::Undeliverable;
            self.finish_put(from, incoming);
        }
    }

    /// Answers a get. Data that fits into a packet is read now, so that a later put cannot change it.
    fn serve(&mut self, delivery: AdmittedMessage) {
        let len = delivery.arrival.mlength;
        let body = PacketHeader::Answer(delivery.answer(NiFail::Ok, false));
        let (from, short) = (delivery.from, usize::try_from(len).ok());
        let short = short.filter(|short| *short <= self.config.packet_max);
        let Some(short) = short else {
            let payload = PayloadSource::Region {
                region: delivery.region.clone(),
                offset: delivery.offset,
                len,
            };
            let then = TransmitAction::Served(Box::new(delivery));
            return self
                .lanes
                .enqueue(from, SoftOutMessage::new(body, payload, then));
        };
        let mut bytes = vec![0; short];
        let read = match short {
            0 => Ok(()),
            _ => delivery
                .region
                .read(&mut self.memory, delivery.offset, &mut bytes),
        };
        if read.is_err() {
            let failed = PacketHeader::Answer(delivery.answer(NiFail::Segv, false));
            self.lanes.enqueue(
                from,
                SoftOutMessage::new(failed, PayloadSource::None, TransmitAction::Nothing),
            );
            return self.complete(delivery, NiFail::Segv);
        }
        self.lanes.enqueue(
            from,
            SoftOutMessage::new(body, PayloadSource::Bytes(bytes), TransmitAction::Nothing),
        );
        self.complete(delivery, NiFail::Ok);
    }

    /// Applies an atomic in one step: no other message comes between its read and its write.
    fn combine(&mut self, delivery: AdmittedMessage, kind: SoftRequestKind, payload: &[u8]) {
        let (operator, datatype, operand) = match kind {
            SoftRequestKind::Fetch(operator, datatype, operand) => (operator, datatype, operand),
            SoftRequestKind::Atomic(operator, datatype) => (operator, datatype, [0; 32]),
            SoftRequestKind::Put | SoftRequestKind::Get => return,
        };
        let whole = payload.len() as u64 == delivery.arrival.rlength;
        let len = usize::try_from(delivery.arrival.mlength)
            .unwrap_or(0)
            .min(payload.len());
        let mut before = vec![0; len];
        let mut fail = if whole {
            NiFail::Ok
        } else {
            NiFail::Undeliverable
        };
        if fail == NiFail::Ok && len > 0 {
            let size = datatype.size();
            let combine = |at: usize, element: &mut [u8]| {
                let source = &payload[at..][..element.len()];
                atomic::apply(operator, datatype, &operand, element, source);
            };
            let (region, offset) = (&delivery.region, delivery.offset);
            let done = region.update(&mut self.memory, offset, size, &mut before, combine);
            fail = if done.is_ok() {
                NiFail::Ok
            } else {
                NiFail::Segv
            };
        }
        if matches!(kind, SoftRequestKind::Fetch(..)) {
            let body = PacketHeader::Answer(delivery.answer(fail, false));
            let payload = if fail == NiFail::Ok {
                PayloadSource::Bytes(before)
            } else {
                PayloadSource::None
            };
            self.lanes.enqueue(
                delivery.from,
                SoftOutMessage::new(body, payload, TransmitAction::Nothing),
            );
        }
        self.complete(delivery, fail);
    }

    /// Completes a message: posts its event, answers it, and releases its entry.
    pub(super) fn complete(&mut self, delivery: AdmittedMessage, fail: NiFail) {
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
            let body = PacketHeader::Answer(delivery.answer(fail, silent));
            self.lanes.enqueue(
                delivery.from,
                SoftOutMessage::new(body, PayloadSource::None, TransmitAction::Nothing),
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
    fn tell_of(&mut self, delivery: &AdmittedMessage, fail: NiFail) {
        let Some(linked) = self.entries.get(delivery.entry.0) else {
            return;
        };
        let (options, ct, user_ptr) = (linked.entry.options, linked.entry.ct, linked.user_ptr);
        let arrival = &delivery.arrival;
        let mut event = arrival.event(arrival.kind, fail, delivery.list, user_ptr);
        if self.config.habits.short_failures && fail != NiFail::Ok {
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

    fn refuse(&mut self, to: PhysicalId, operation: u64, wants_answer: bool, fail: NiFail) {
        if !wants_answer {
            return;
        }
        let answer = AnswerHeader {
            operation,
            fail,
            silent: false,
            list: EntryList::Priority,
            mlength: 0,
            remote_offset: 0,
        };
        self.lanes.enqueue(
            to,
            SoftOutMessage::new(
                PacketHeader::Answer(answer),
                PayloadSource::None,
                TransmitAction::Nothing,
            ),
        );
    }

    pub(super) fn has(&self, id: EntryId, options: EntryOptions) -> bool {
        let linked = self.entries.get(id.0);
        linked.is_some_and(|linked| linked.entry.options.has(options))
    }
}

impl AdmittedMessage {
    /// Returns the answer; its `remote_offset` is the offset that was used.
    const fn answer(&self, fail: NiFail, silent: bool) -> AnswerHeader {
        let ok = matches!(fail, NiFail::Ok);
        AnswerHeader {
            operation: self.operation,
            fail,
            silent,
            list: self.list,
            mlength: if ok { self.arrival.mlength } else { 0 },
            remote_offset: self.offset,
        }
    }
}
