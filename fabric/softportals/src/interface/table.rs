//! The portal table and its lists.

use std::collections::{BTreeMap, VecDeque};

use super::{
    EntryId, EqId, SoftInterface,
    entry::{EntryProbe, InitiatorFilter, LinkedEntry, PendingUnlink, SoftListEntry},
    unexpected::UnexpectedHeader,
};
use crate::{
    error::SoftError,
    event::{EntryList, EventKind, FullEvent, NiFail},
    memory::AppMemory,
    options::{EntryOptions, TableOptions},
};

/// Action of a search on the messages it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SearchMode {
    /// Reports the message.
    Only,
    /// Claims the message, as an appended entry would.
    Delete,
}

/// An entry of the portal table.
#[derive(Debug)]
pub(super) struct PortalTableEntry {
    pub(super) options: TableOptions,
    pub(super) eq: Option<EqId>,
    pub(super) enabled: bool,
    pub(super) priority: VecDeque<EntryId>,
    pub(super) overflow: VecDeque<EntryId>,
    /// Unexpected messages by order of arrival.
    pub(super) unexpected: BTreeMap<u64, UnexpectedHeader>,
    pub(super) arrivals: u64,
    /// Messages being delivered.
    pub(super) pending: u32,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Allocates an entry of the portal table: `wanted`, or the first free one.
    ///
    /// # Errors
    /// `PtFull`, `PtInUse`, `PtEqNeeded` for flow control without a queue, `ArgInvalid`.
    pub fn pt_alloc(
        &mut self,
        options: TableOptions,
        eq: Option<EqId>,
        wanted: Option<u32>,
    ) -> Result<u32, SoftError> {
        if eq.is_some_and(|eq| self.queues.get(eq.0).is_none()) {
            return Err(SoftError::ArgInvalid("eq_handle"));
        }
        if eq.is_none() && options.has(TableOptions::FLOWCTRL) {
            return Err(SoftError::PtEqNeeded);
        }
        let at = match wanted {
            None => self.table.iter().position(Option::is_none),
            Some(at) => Some(at as usize),
        };
        let at = at.ok_or(SoftError::PtFull)?;
        match self.table.get_mut(at) {
            None => return Err(SoftError::ArgInvalid("pt_index: more than max_pt_index")),
            Some(Some(_)) => return Err(SoftError::PtInUse),
            Some(free) => *free = Some(PortalTableEntry::new(options, eq)),
        }
        if let Some(queue) = self.flow_queue(at) {
            queue.serve_flow_control();
        }
        u32::try_from(at).map_err(|_| SoftError::PtFull)
    }

    /// Frees a portal table entry and forgets its unexpected messages.
    ///
    /// # Errors
    /// `PtInUse` while an entry is on its lists or a message is in flight; `ArgInvalid` if it does not exist.
    pub fn pt_free(&mut self, pt_index: u32) -> Result<(), SoftError> {
        let portal = self.portal(pt_index)?;
        if !portal.priority.is_empty() || !portal.overflow.is_empty() || portal.pending > 0 {
            return Err(SoftError::PtInUse);
        }
        let headers: Vec<u64> = portal.unexpected.keys().copied().collect();
        for arrival in headers {
            self.forget_header(pt_index, arrival);
        }
        if let Some(queue) = self.flow_queue(pt_index as usize) {
            queue.leave_flow_control();
        }
        self.table[pt_index as usize] = None;
        Ok(())
    }

    /// Stops admitting messages. Messages already in flight continue: see [`Self::pt_is_busy`].
    ///
    /// # Errors
    /// `ArgInvalid` if the portal table entry does not exist.
    pub fn pt_disable(&mut self, pt_index: u32) -> Result<(), SoftError> {
        self.portal_mut(pt_index)?.enabled = false;
        Ok(())
    }

    /// Admits messages again.
    ///
    /// # Errors
    /// `ArgInvalid` if the portal table entry does not exist.
    pub fn pt_enable(&mut self, pt_index: u32) -> Result<(), SoftError> {
        self.portal_mut(pt_index)?.enabled = true;
        Ok(())
    }

    /// Returns true if messages are being delivered.
    ///
    /// # Errors
    /// `ArgInvalid` if the portal table entry does not exist.
    pub fn pt_is_busy(&self, pt_index: u32) -> Result<bool, SoftError> {
        Ok(self.portal(pt_index)?.pending > 0)
    }

    /// Appends an entry to a list.
    ///
    /// An entry for the priority list first takes the unexpected messages that it matches. A use-once entry that finds one is not
    /// linked, because it is already used up.
    ///
    /// # Errors
    /// `NoSpace`, `ListTooLong`, `ArgInvalid`.
    pub fn append(
        &mut self,
        pt_index: u32,
        entry: SoftListEntry,
        list: EntryList,
        user_ptr: u64,
    ) -> Result<EntryId, SoftError> {
        self.check_entry(&entry)?;
        let portal = self.portal(pt_index)?;
        let long = portal.list(list).len() >= self.config.limits.max_list_size as usize;
        if long {
            return Err(SoftError::ListTooLong);
        }
        if self.entries.len() >= self.config.limits.max_entries as usize {
            return Err(SoftError::NoSpace);
        }
        let id = EntryId(self.entries.insert(LinkedEntry {
            entry,
            pt_index,
            list,
            user_ptr,
            local: 0,
            on_list: true,
            pending: 0,
            headers: 0,
            unlink: None,
        }));
        if list == EntryList::Overflow || self.take_unexpected(id) {
            self.link(id);
        }
        self.run_triggered();
        Ok(id)
    }

    /// Unlinks an entry.
    ///
    /// # Errors
    /// `InUse` while a message is being delivered to the entry, an unexpected message lies in it, or an unexpected message it
    /// claimed is incomplete; `ArgInvalid` if it does not exist.
    pub fn unlink(&mut self, id: EntryId) -> Result<(), SoftError> {
        let linked = self
            .entries
            .get(id.0)
            .ok_or(SoftError::ArgInvalid("me_handle"))?;
        if linked.pending > 0 || linked.headers > 0 {
            return Err(SoftError::InUse);
        }
        self.take_off_list(id);
        self.entries.remove(id.0);
        Ok(())
    }

    fn link(&mut self, id: EntryId) {
        let Some(linked) = self.entries.get(id.0) else {
            return;
        };
        let (pt_index, list) = (linked.pt_index, linked.list);
        let quiet = linked.entry.options.has(EntryOptions::EVENT_LINK_DISABLE);
        if let Some(Some(portal)) = self.table.get_mut(pt_index as usize) {
            portal.list_mut(list).push_back(id);
        }
        if !quiet {
            self.tell_of_entry(id, EventKind::Link);
        }
    }

    /// Unlinks an entry by its own rules. The event is posted once [no message is being delivered to it](Self::tell_unlinked).
    pub(super) fn auto_unlink(&mut self, id: EntryId, unlink: PendingUnlink) {
        self.take_off_list(id);
        if let Some(linked) = self.entries.get_mut(id.0) {
            linked.unlink = Some(unlink);
        }
    }

    /// Posts the `AUTO_UNLINK` event of an entry, after the events of all messages that it took: its owner may append the memory
    /// again when it receives that event.
    pub(super) fn tell_unlinked(&mut self, id: EntryId) {
        let Some(linked) = self.entries.get_mut(id.0) else {
            return;
        };
        if linked.on_list || linked.pending > 0 {
            return;
        }
        let Some(unlink) = linked.unlink.take() else {
            return;
        };
        let pt_index = linked.pt_index;
        let quiet = linked.entry.options.has(EntryOptions::EVENT_UNLINK_DISABLE);
        if unlink.reserved {
            self.unreserve(pt_index, 1);
        }
        if !quiet {
            self.tell_of_entry(id, EventKind::AutoUnlink);
        }
    }

    /// Returns reserved places to the queue of a portal table entry.
    pub(super) fn unreserve(&mut self, pt_index: u32, count: usize) {
        let eq = self.portal_queue(pt_index);
        if let Some(queue) = eq.and_then(|eq| self.queues.get_mut(eq.0)) {
            queue.unreserve(count);
        }
    }

    fn take_off_list(&mut self, id: EntryId) {
        let Some(linked) = self.entries.get_mut(id.0) else {
            return;
        };
        linked.on_list = false;
        let (pt_index, list) = (linked.pt_index, linked.list);
        if let Some(Some(portal)) = self.table.get_mut(pt_index as usize) {
            let list = portal.list_mut(list);
            if let Some(at) = list.iter().position(|one| *one == id) {
                list.remove(at);
            }
        }
    }

    /// Frees an unlinked entry once no message is pending in it and no unexpected message lies in it.
    pub(super) fn release(&mut self, id: EntryId) {
        self.tell_unlinked(id);
        let Some(linked) = self.entries.get(id.0) else {
            return;
        };
        if linked.on_list || linked.pending > 0 || linked.headers > 0 {
            return;
        }
        let quiet = linked.entry.options.has(EntryOptions::EVENT_UNLINK_DISABLE);
        if linked.list == EntryList::Overflow && !quiet {
            self.tell_of_entry(id, EventKind::AutoFree);
        }
        self.entries.remove(id.0);
    }

    fn tell_of_entry(&mut self, id: EntryId, kind: EventKind) {
        let Some(linked) = self.entries.get(id.0) else {
            return;
        };
        let event = FullEvent {
            list: linked.list,
            start: linked.entry.region.address(0),
            pt_index: linked.pt_index,
            ..FullEvent::new(kind, NiFail::Ok, linked.user_ptr)
        };
        let eq = self
            .portal(linked.pt_index)
            .ok()
            .and_then(|portal| portal.eq);
        self.post(eq, event);
    }

    /// Returns the first entry that takes a message, and its list. O(length of the lists).
    pub(super) fn find(
        &self,
        portal: &PortalTableEntry,
        probe: &EntryProbe,
    ) -> Option<(EntryId, EntryList)> {
        let first = |list: EntryList| {
            let mut ids = portal.list(list).iter().copied();
            ids.find(|id| {
                self.entries
                    .get(id.0)
                    .is_some_and(|entry| self.matches(entry, probe))
            })
        };
        let on = |list: EntryList| first(list).map(|id| (id, list));
        on(EntryList::Priority).or_else(|| on(EntryList::Overflow))
    }

    pub(super) fn matches(&self, linked: &LinkedEntry, probe: &EntryProbe) -> bool {
        let entry = &linked.entry;
        let stranger = entry.uid.is_some_and(|uid| uid != probe.uid);
        if stranger && self.config.family.matches_users() {
            return false;
        }
        !self.config.matching
            || (entry.match_bits ^ probe.match_bits) & !entry.ignore_bits == 0
                && entry.source.takes(probe.initiator)
                && (!entry.options.has(EntryOptions::NO_TRUNCATE)
                    || linked.room(probe) >= probe.length)
    }

    pub(super) fn portal(&self, pt_index: u32) -> Result<&PortalTableEntry, SoftError> {
        let portal = self.table.get(pt_index as usize).and_then(Option::as_ref);
        portal.ok_or(SoftError::ArgInvalid("pt_index"))
    }

    pub(super) fn portal_mut(&mut self, pt_index: u32) -> Result<&mut PortalTableEntry, SoftError> {
        let portal = self
            .table
            .get_mut(pt_index as usize)
            .and_then(Option::as_mut);
        portal.ok_or(SoftError::ArgInvalid("pt_index"))
    }

    pub(super) fn check_entry(&self, entry: &SoftListEntry) -> Result<(), SoftError> {
        self.check_region(&entry.region)?;
        if entry.ct.is_some_and(|ct| self.counters.get(ct.0).is_none()) {
            return Err(SoftError::ArgInvalid("ct_handle"));
        }
        let fits = match entry.source {
            InitiatorFilter::Any => true,
            InitiatorFilter::Rank(_) => self.config.logical,
            InitiatorFilter::At { .. } => !self.config.logical,
        };
        if self.config.matching && !fits {
            return Err(SoftError::ArgInvalid(
                "match_id: not how this interface names processes",
            ));
        }
        Ok(())
    }

    /// Returns the queue of a portal table entry with flow control.
    fn flow_queue(&mut self, at: usize) -> Option<&mut crate::event::EventQueue> {
        let portal = self.table.get(at)?.as_ref()?;
        let eq = portal.eq.filter(|_| portal.has_flow_control())?;
        self.queues.get_mut(eq.0)
    }
}

impl PortalTableEntry {
    const fn new(options: TableOptions, eq: Option<EqId>) -> Self {
        Self {
            options,
            eq,
            enabled: !options.has(TableOptions::ALLOC_DISABLED),
            priority: VecDeque::new(),
            overflow: VecDeque::new(),
            unexpected: BTreeMap::new(),
            arrivals: 0,
            pending: 0,
        }
    }

    pub(super) const fn has_flow_control(&self) -> bool {
        self.options.has(TableOptions::FLOWCTRL)
    }

    const fn list(&self, list: EntryList) -> &VecDeque<EntryId> {
        match list {
            EntryList::Priority => &self.priority,
            EntryList::Overflow => &self.overflow,
        }
    }

    const fn list_mut(&mut self, list: EntryList) -> &mut VecDeque<EntryId> {
        match list {
            EntryList::Priority => &mut self.priority,
            EntryList::Overflow => &mut self.overflow,
        }
    }
}
