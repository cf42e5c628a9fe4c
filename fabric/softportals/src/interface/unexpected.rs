//! Unexpected messages, which arrived before their entry: headers are kept while their data lies in an entry of the overflow
//! list.

use super::{
    CtId, EntryId, EqId, SoftInterface,
    entry::{EntryProbe, LinkedEntry, PendingUnlink, SoftListEntry},
    initiator::counts,
    table::SearchMode,
};
use crate::{
    atomic::{AtomicDatatype, AtomicOperator},
    counter::SoftCtValue,
    error::SoftError,
    event::{EntryList, EventKind, FullEvent, NiFail, SoftPeer},
    memory::AppMemory,
    options::EntryOptions,
};

/// Header of an arrived message.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivalHeader {
    pub(super) kind: EventKind,
    pub(super) initiator: SoftPeer,
    pub(super) uid: u32,
    pub(super) pt_index: u32,
    pub(super) match_bits: u64,
    pub(super) hdr_data: u64,
    pub(super) remote_offset: u64,
    pub(super) rlength: u64,
    pub(super) mlength: u64,
    pub(super) start: u64,
    pub(super) operator: Option<AtomicOperator>,
    pub(super) datatype: Option<AtomicDatatype>,
}

#[derive(Debug)]
pub(super) struct UnexpectedHeader {
    pub(super) arrival: ArrivalHeader,
    /// Entry that holds the data.
    pub(super) entry: EntryId,
    /// True if all data has arrived.
    pub(super) complete: bool,
    /// Receiver that claimed the message before it was complete, notified when it is.
    pub(super) claim: Option<UnexpectedClaim>,
}

/// Receiver that claimed an unexpected message.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnexpectedClaim {
    user_ptr: u64,
    options: EntryOptions,
    ct: Option<CtId>,
    /// Appended entry that claimed the message; `None` for a search.
    entry: Option<EntryId>,
    /// True if the entry ends with this message.
    last: bool,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Searches for unexpected messages that match `entry`, without linking it.
    ///
    /// An entry with `USE_ONCE` finds at most one message. Events and counts report each message found. The end of the search is
    /// always counted, and reported by an event as the [`LibraryFamily`](super::LibraryFamily) requires.
    ///
    /// # Errors
    /// `ArgInvalid`.
    pub fn search(
        &mut self,
        pt_index: u32,
        entry: SoftListEntry,
        mode: SearchMode,
        user_ptr: u64,
    ) -> Result<(), SoftError> {
        self.check_entry(&entry)?;
        self.portal(pt_index)?;
        let linked = LinkedEntry {
            entry,
            pt_index,
            list: EntryList::Priority,
            user_ptr,
            local: 0,
            on_list: false,
            pending: 0,
            headers: 0,
            unlink: None,
        };
        let claim = UnexpectedClaim::of(&linked, None, false);
        let once = claim.options.has(EntryOptions::USE_ONCE);
        let mut found = 0_u32;
        let mut after = None;
        while let Some(arrival) = self.next_match(pt_index, &linked, after) {
            found += 1;
            after = Some(arrival);
            match mode {
                SearchMode::Only => self.tell_of_find(pt_index, arrival, &claim),
                SearchMode::Delete => self.claim(pt_index, arrival, claim),
            }
            if once {
                break;
            }
        }
        if found == 0 || !once && self.config.family.closes_searches() {
            self.tell_of_no_more(pt_index, &claim);
        }
        if found == 0 || !once {
            self.count_search(&claim, mode, FAILURE);
        }
        self.run_triggered();
        Ok(())
    }

    /// Delivers matching unexpected messages to an entry that is being appended. Returns false if that uses up the entry.
    pub(super) fn take_unexpected(&mut self, id: EntryId) -> bool {
        loop {
            let Some(linked) = self.entries.get(id.0) else {
                return false;
            };
            let pt_index = linked.pt_index;
            let Some(arrival) = self.next_match(pt_index, linked, None) else {
                return true;
            };
            let options = linked.entry.options;
            let header = self.header(pt_index, arrival);
            let step = header.map_or(0, |header| match header.arrival {
                of if options.has(EntryOptions::LOCAL_INC_UH_RLENGTH) => of.rlength,
                of if options.has(EntryOptions::LOCAL_INC_UH_MLENGTH) => of.mlength,
                _ => 0,
            });
            let Some(linked) = self.entries.get_mut(id.0) else {
                return false;
            };
            linked.advance_to(linked.local.saturating_add(step));
            let last = linked.is_used_up();
            let claim = UnexpectedClaim::of(linked, Some(id), last);
            self.claim(pt_index, arrival, claim);
            if last {
                return false;
            }
        }
    }

    /// Returns the first unclaimed message after `after` that `linked` matches.
    fn next_match(&self, pt_index: u32, linked: &LinkedEntry, after: Option<u64>) -> Option<u64> {
        let portal = self.portal(pt_index).ok()?;
        let from = after.map_or(0, |after| after + 1);
        let mut headers = portal.unexpected.range(from..);
        let found = headers.find(|(_, header)| {
            header.claim.is_none() && self.matches(linked, &header.arrival.probe())
        });
        found.map(|(arrival, _)| *arrival)
    }

    /// Claims a message for a receiver, which is notified once the data has arrived. The claiming entry counts as in use until
    /// then.
    fn claim(&mut self, pt_index: u32, arrival: u64, claim: UnexpectedClaim) {
        if let Some(linked) = claim.entry.and_then(|id| self.entries.get_mut(id.0)) {
            linked.pending += 1;
        }
        let portal = self.portal_mut(pt_index).ok();
        let Some(header) = portal.and_then(|portal| portal.unexpected.get_mut(&arrival)) else {
            return;
        };
        header.claim = Some(claim);
        if header.complete {
            self.hand_over(pt_index, arrival, NiFail::Ok);
        }
    }

    /// Handles the end of an unexpected message's data: all of it arrived, or it failed.
    pub(super) fn complete_header(&mut self, pt_index: u32, arrival: u64, fail: NiFail) {
        let portal = self.portal_mut(pt_index).ok();
        let Some(header) = portal.and_then(|portal| portal.unexpected.get_mut(&arrival)) else {
            return;
        };
        header.complete = true;
        if header.claim.is_some() {
            self.hand_over(pt_index, arrival, fail);
        } else if fail != NiFail::Ok {
            self.forget_header(pt_index, arrival);
        }
    }

    fn hand_over(&mut self, pt_index: u32, arrival: u64, fail: NiFail) {
        let Some(header) = self.header(pt_index, arrival) else {
            return;
        };
        let (Some(claim), found) = (header.claim, header.arrival) else {
            return;
        };
        let event = found.event(
            found.kind.overflow(),
            fail,
            EntryList::Overflow,
            claim.user_ptr,
        );
        let eq = self.portal_queue(pt_index);
        if claim.options.shows(EntryOptions::EVENT_OVER_DISABLE, fail) {
            self.post(eq, event);
        }
        if claim.options.has(EntryOptions::EVENT_CT_OVERFLOW) {
            let bytes = claim.options.has(EntryOptions::EVENT_CT_BYTES);
            self.count(claim.ct, counts(&event, bytes));
        }
        if let Some(id) = claim.entry {
            if let Some(linked) = self.entries.get_mut(id.0) {
                linked.pending -= 1;
            }
            if claim.last {
                self.auto_unlink(id, PendingUnlink { reserved: false });
            }
            self.release(id);
        }
        self.forget_header(pt_index, arrival);
    }

    /// Forgets a message, and releases the entry that held its data if the entry waited for that.
    pub(super) fn forget_header(&mut self, pt_index: u32, arrival: u64) {
        let portal = self.portal_mut(pt_index).ok();
        let Some(header) = portal.and_then(|portal| portal.unexpected.remove(&arrival)) else {
            return;
        };
        self.unexpected -= 1;
        if let Some(linked) = self.entries.get_mut(header.entry.0) {
            linked.headers -= 1;
        }
        self.release(header.entry);
    }

    fn tell_of_find(&mut self, pt_index: u32, arrival: u64, claim: &UnexpectedClaim) {
        let Some(header) = self.header(pt_index, arrival) else {
            return;
        };
        let found = header.arrival;
        let event = found.event(
            EventKind::Search,
            NiFail::Ok,
            EntryList::Overflow,
            claim.user_ptr,
        );
        let eq = self.portal_queue(pt_index);
        if self.shows_search(claim, NiFail::Ok) {
            self.post(eq, event);
        }
        let bytes = claim.options.has(EntryOptions::EVENT_CT_BYTES);
        self.count_search(claim, SearchMode::Only, counts(&event, bytes));
    }

    fn tell_of_no_more(&mut self, pt_index: u32, claim: &UnexpectedClaim) {
        let event = FullEvent {
            pt_index,
            ..FullEvent::new(EventKind::Search, NiFail::NoMatch, claim.user_ptr)
        };
        let eq = self.portal_queue(pt_index);
        if self.shows_search(claim, NiFail::NoMatch) {
            self.post(eq, event);
        }
    }

    /// Returns true if a SEARCH event is posted. The option for overflow events does not apply to it.
    fn shows_search(&self, claim: &UnexpectedClaim, fail: NiFail) -> bool {
        let options = claim.options;
        let hidden =
            self.config.family.hides_searches() && options.has(EntryOptions::EVENT_COMM_DISABLE);
        let muted = fail == NiFail::Ok && options.has(EntryOptions::EVENT_SUCCESS_DISABLE);
        !hidden && !muted
    }

    /// Counts the result of a search.
    ///
    /// `SearchMode::Only` counts whenever there is a counter, because no option covers its events. `SearchMode::Delete` reports
    /// overflow events, so the option for those applies, also at the end of the search.
    fn count_search(&mut self, claim: &UnexpectedClaim, mode: SearchMode, by: SoftCtValue) {
        let counts = claim.options.has(EntryOptions::EVENT_CT_OVERFLOW);
        if mode == SearchMode::Only || counts {
            self.count(claim.ct, by);
        }
    }

    fn header(&self, pt_index: u32, arrival: u64) -> Option<&UnexpectedHeader> {
        self.portal(pt_index).ok()?.unexpected.get(&arrival)
    }

    pub(super) fn portal_queue(&self, pt_index: u32) -> Option<EqId> {
        self.portal(pt_index).ok()?.eq
    }
}

impl UnexpectedClaim {
    const fn of(linked: &LinkedEntry, entry: Option<EntryId>, last: bool) -> Self {
        Self {
            user_ptr: linked.user_ptr,
            options: linked.entry.options,
            ct: linked.entry.ct,
            entry,
            last,
        }
    }
}

impl ArrivalHeader {
    const fn probe(&self) -> EntryProbe {
        EntryProbe {
            initiator: self.initiator,
            uid: self.uid,
            match_bits: self.match_bits,
            offset: self.remote_offset,
            length: self.rlength,
        }
    }

    pub(super) const fn event(
        &self,
        kind: EventKind,
        fail: NiFail,
        list: EntryList,
        user_ptr: u64,
    ) -> FullEvent {
        FullEvent {
            list,
            start: self.start,
            hdr_data: self.hdr_data,
            match_bits: self.match_bits,
            rlength: self.rlength,
            mlength: self.mlength,
            remote_offset: self.remote_offset,
            initiator: self.initiator,
            uid: self.uid,
            pt_index: self.pt_index,
            operator: self.operator,
            datatype: self.datatype,
            ..FullEvent::new(kind, fail, user_ptr)
        }
    }
}

impl EntryOptions {
    /// Returns true if an event is posted, given the option that disables its kind.
    pub(super) fn shows(self, disabled: Self, fail: NiFail) -> bool {
        !self.has(disabled) && (fail != NiFail::Ok || !self.has(Self::EVENT_SUCCESS_DISABLE))
    }
}

const FAILURE: SoftCtValue = SoftCtValue {
    success: 0,
    failure: 1,
};
