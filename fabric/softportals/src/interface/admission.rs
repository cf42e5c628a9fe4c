//! Admission of an arriving message: finds the entry that takes it, and accounts for the resources it uses.

use super::{
    EntryId, SoftInterface,
    entry::{EntryProbe, PendingUnlink},
    target::AdmittedMessage,
    unexpected::{ArrivalHeader, UnexpectedHeader},
};
use crate::{
    event::{EntryList, EventKind, FullEvent, NiFail, PhysicalId, SoftPeer},
    memory::AppMemory,
    options::EntryOptions,
    packet::{RequestHeader, SoftRequestKind},
};

/// Events of a message for which a place in the queue is reserved.
#[derive(Clone, Copy, Debug, Default)]
struct ReservedEvents {
    event: bool,
    unlink: bool,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Finds the entry that takes a message, and updates the entry and the portal table immediately.
    pub(super) fn admit(
        &mut self,
        from: PhysicalId,
        request: &RequestHeader,
    ) -> Result<AdmittedMessage, NiFail> {
        let Some(initiator) = self.initiator(from, request) else {
            self.status.permission_violations += 1;
            return Err(NiFail::PermViolation);
        };
        let probe = EntryProbe {
            initiator,
            uid: request.uid,
            match_bits: request.match_bits,
            offset: request.remote_offset,
            length: request.length,
        };
        let Ok(portal) = self.portal(request.pt_index) else {
            self.status.drops += 1;
            return Err(NiFail::Dropped);
        };
        if !portal.enabled {
            self.status.drops += 1;
            return Err(NiFail::PtDisabled);
        }
        let Some((entry, list)) = self.find(portal, &probe) else {
            return Err(self.exhausted(request.pt_index, None));
        };
        self.check_permission(entry, request)?;
        let remembered =
            list == EntryList::Overflow && !self.has(entry, EntryOptions::UNEXPECTED_HDR_DISABLE);
        if remembered && self.unexpected >= self.config.limits.max_unexpected_headers {
            return Err(self.exhausted(request.pt_index, Some(entry)));
        }
        let Some(reserved) = self.reserve_events(request.pt_index, entry) else {
            return Err(self.exhausted(request.pt_index, Some(entry)));
        };
        self.deliver_to(entry, list, &probe, request, from, remembered, reserved)
            .ok_or(NiFail::Dropped)
    }

    /// Returns the initiator's name. A rank in the request must belong to the address it came from.
    fn initiator(&self, from: PhysicalId, request: &RequestHeader) -> Option<SoftPeer> {
        if !self.config.logical {
            return Some(SoftPeer::At(from));
        }
        let owner = self.map.get(request.rank as usize);
        (owner == Some(&from)).then_some(SoftPeer::Rank(request.rank))
    }

    fn check_permission(&mut self, entry: EntryId, request: &RequestHeader) -> Result<(), NiFail> {
        let Some(linked) = self.entries.get(entry.0) else {
            return Err(NiFail::Dropped);
        };
        if linked.entry.uid.is_some_and(|uid| uid != request.uid) {
            self.status.permission_violations += 1;
            return Err(NiFail::PermViolation);
        }
        let needed = match request.kind {
            SoftRequestKind::Put | SoftRequestKind::Atomic(..) => EntryOptions::OP_PUT,
            SoftRequestKind::Get => EntryOptions::OP_GET,
            SoftRequestKind::Fetch(..) => EntryOptions::OP_PUT | EntryOptions::OP_GET,
        };
        if !linked.entry.options.has(needed) {
            self.status.operation_violations += 1;
            return Err(NiFail::OpViolation);
        }
        Ok(())
    }

    /// Handles an exhausted resource: flow control disables the portal table entry, otherwise the message is dropped.
    fn exhausted(&mut self, pt_index: u32, entry: Option<EntryId>) -> NiFail {
        self.status.drops += 1;
        let quiet = entry.is_some_and(|id| self.has(id, EntryOptions::EVENT_FLOWCTRL_DISABLE));
        let Ok(portal) = self.portal_mut(pt_index) else {
            return NiFail::Dropped;
        };
        if !portal.has_flow_control() {
            return NiFail::Dropped;
        }
        portal.enabled = false;
        let eq = portal.eq;
        if !quiet {
            let event = FullEvent::new(EventKind::PtDisabled, NiFail::PtDisabled, 0);
            self.post(eq, FullEvent { pt_index, ..event });
        }
        NiFail::PtDisabled
    }

    /// Reserves queue places for the events of the message, if flow control requires it.
    fn reserve_events(&mut self, pt_index: u32, entry: EntryId) -> Option<ReservedEvents> {
        let portal = self.portal(pt_index).ok()?;
        let counts = portal.has_flow_control() && self.config.counts_events;
        let Some(eq) = portal.eq.filter(|_| counts) else {
            return Some(ReservedEvents::default());
        };
        let linked = self.entries.get(entry.0)?;
        let options = linked.entry.options;
        let event = options.shows(EntryOptions::EVENT_COMM_DISABLE, NiFail::Ok);
        let unlink = linked.may_end() && !options.has(EntryOptions::EVENT_UNLINK_DISABLE);
        let queue = self.queues.get_mut(eq.0)?;
        if !queue.reserve(usize::from(event) + usize::from(unlink)) {
            return None;
        }
        Some(ReservedEvents { event, unlink })
    }

    #[expect(clippy::too_many_arguments, reason = "what `admit` has found out")]
    fn deliver_to(
        &mut self,
        id: EntryId,
        list: EntryList,
        probe: &EntryProbe,
        request: &RequestHeader,
        from: PhysicalId,
        remembered: bool,
        reserved: ReservedEvents,
    ) -> Option<AdmittedMessage> {
        let linked = self.entries.get_mut(id.0)?;
        let (offset, room) = linked.place(probe);
        let mlength = room.min(probe.length);
        linked.advance_to(offset.saturating_add(mlength));
        linked.pending += 1;
        linked.headers += u32::from(remembered);
        let used_up = linked.is_used_up();
        let region = linked.entry.region.clone();
        let arrival = request.arrival(probe.initiator, mlength, region.address(offset));
        let portal = self.portal_mut(request.pt_index).ok()?;
        portal.pending += 1;
        let header = remembered.then_some(portal.arrivals);
        if let Some(at) = header {
            portal.arrivals += 1;
            let unexpected = UnexpectedHeader {
                arrival,
                entry: id,
                complete: false,
                claim: None,
            };
            portal.unexpected.insert(at, unexpected);
            self.unexpected += 1;
        }
        let unlink = PendingUnlink {
            reserved: reserved.unlink,
        };
        if used_up {
            self.auto_unlink(id, unlink);
        } else if unlink.reserved {
            self.unreserve(request.pt_index, 1);
        }
        Some(AdmittedMessage {
            arrival,
            from,
            operation: request.operation,
            wants_answer: request.wants_answer,
            entry: id,
            list,
            region,
            offset,
            header,
            reserved: reserved.event,
        })
    }
}

impl RequestHeader {
    const fn arrival(&self, initiator: SoftPeer, mlength: u64, start: u64) -> ArrivalHeader {
        let (kind, operator, datatype) = match self.kind {
            SoftRequestKind::Put => (EventKind::Put, None, None),
            SoftRequestKind::Get => (EventKind::Get, None, None),
            SoftRequestKind::Atomic(operator, datatype) => {
                (EventKind::Atomic, Some(operator), Some(datatype))
            }
            SoftRequestKind::Fetch(operator, datatype, _) => {
                (EventKind::FetchAtomic, Some(operator), Some(datatype))
            }
        };
        ArrivalHeader {
            kind,
            initiator,
            uid: self.uid,
            pt_index: self.pt_index,
            match_bits: self.match_bits,
            hdr_data: self.hdr_data,
            remote_offset: self.remote_offset,
            rlength: self.length,
            mlength,
            start,
            operator,
            datatype,
        }
    }
}
