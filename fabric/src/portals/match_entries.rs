//! Match list entries: their kinds, and their form in the library.
#![expect(
    unsafe_code,
    reason = "calls C functions, and reads and writes the descriptors that they name"
)]

use super::{
    calls::{AddressRange, Ct, Me, PortalsCallError, PortalsNi, PortalsResult, span},
    event::PortalsProcess,
    profile::LibraryProfile,
    struct_buffer::StructBuffer,
};
use crate::driver::LocalRange;

/// A list entry to append.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchEntry {
    /// `None` for all memory of this process.
    pub(super) memory: Option<LocalRange>,
    pub(super) kind: EntryKind,
    pub(super) match_bits: u64,
    pub(super) ignore_bits: u64,
}

/// A list entry in the form of the library.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawEntry {
    pub(super) memory: AddressRange,
    pub(super) options: u32,
    pub(super) match_bits: u64,
    pub(super) ignore_bits: u64,
    pub(super) min_free: u64,
    /// Counter of the entry.
    pub(super) ct: Option<Ct>,
    /// Process whose messages the entry takes; `None` takes messages of all.
    pub(super) from: Option<PortalsProcess>,
    /// True for the overflow list, which takes messages that match nothing else.
    pub(super) overflow: bool,
}

/// Purposes of entries.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryKind {
    /// Consecutive messages, until fewer than `min_free` bytes are left. Posts their events and no others. With `last`, takes
    /// only messages that match no other entry.
    Slab { min_free: u64, last: bool },
    /// One message of a process, after which the entry is unlinked.
    Once { from: PortalsProcess },
    /// Puts, with events.
    Board,
    /// Puts, gets and atomics, without events.
    Exposed,
    /// Like `Exposed`, but truncates operations, here to zero bytes.
    ExposedTruncating,
}

impl PortalsNi {
    /// Appends an entry to the list of its kind. `user` is returned in its events.
    pub(super) fn append(&self, pt: u32, entry: &MatchEntry, user: u64) -> PortalsResult<Me> {
        let profile = self.profile();
        let min_free = match entry.kind {
            EntryKind::Slab { min_free, .. } => min_free,
            _ => 0,
        };
        let raw = RawEntry {
            memory: span(entry.memory, profile),
            options: entry.kind.options(profile),
            match_bits: entry.match_bits,
            ignore_bits: entry.ignore_bits,
            min_free,
            ct: None,
            from: match entry.kind {
                EntryKind::Once { from } => Some(from),
                _ => None,
            },
            overflow: matches!(entry.kind, EntryKind::Slab { last: true, .. }),
        };
        self.append_raw(pt, &raw, user)
    }

    /// Appends an entry in the form of the library.
    pub(super) fn append_raw(&self, pt: u32, entry: &RawEntry, user: u64) -> PortalsResult<Me> {
        let profile = self.profile();
        let layout = &profile.layout;
        let AddressRange { start, len } = entry.memory;
        let mut me = StructBuffer::default();
        me.put(0, 8, start);
        me.put(8, 8, len);
        let ct = entry.ct.map_or(profile.ct_none, |Ct(ct)| ct);
        me.put(16, profile.handle_len, ct);
        me.put(layout.me_uid, 4, self.uid);
        me.put(layout.me_options, 4, entry.options.into());
        let any_process = PortalsProcess {
            nid: profile.any.nid,
            pid: profile.any.pid,
        };
        let from = entry.from.unwrap_or(any_process);
        from.write(&mut me, layout.me_match_id, layout);
        me.put(40, 8, entry.match_bits);
        me.put(48, 8, entry.ignore_bits);
        me.put(56, 8, entry.min_free);
        let list = if entry.overflow {
            OVERFLOW_LIST
        } else {
            PRIORITY_LIST
        };
        let mut place = StructBuffer::default();
        // SAFETY: the structure is as the family lays it out, and the place is long enough.
        self.call("PtlMEAppend", || unsafe {
            (self.library.symbols.me_append)(self.ni, pt, me.read(), list, user, place.write())
        })?;
        Ok(Me(place.get(0, profile.handle_len)))
    }

    /// Appends an entry for one message of a process. Its memory is `count` segments, which are listed at `segments`.
    pub(super) fn append_segments(
        &self,
        pt: u32,
        segments: LocalRange,
        count: u64,
        from: PortalsProcess,
        match_bits: u64,
        user: u64,
    ) -> PortalsResult<Me> {
        let profile = self.profile();
        let memory = AddressRange {
            len: count,
            ..AddressRange::exposed(segments)
        };
        let kind = EntryKind::Once { from };
        let raw = RawEntry {
            memory,
            options: kind.options(profile) | profile.options.me_iovec,
            match_bits,
            ignore_bits: 0,
            min_free: 0,
            ct: None,
            from: Some(from),
            overflow: false,
        };
        self.append_raw(pt, &raw, user)
    }

    /// Makes all later operations on a table entry that match nothing else fail as
    /// [`Moved`](super::event::PortalsOutcome::Moved).
    pub(super) fn redirect(&self, pt: u32) -> PortalsResult<()> {
        let options = &self.profile().options;
        let entry = RawEntry {
            memory: AddressRange::EMPTY,
            // The entry admits neither puts nor gets, so every operation fails on it.
            options: options.me_event_link_disable
                | options.me_event_unlink_disable
                | options.me_event_comm_disable,
            match_bits: 0,
            ignore_bits: u64::MAX,
            min_free: 0,
            ct: None,
            from: None,
            overflow: false,
        };
        self.append_raw(pt, &entry, 0).map(drop)
    }

    pub(super) fn unlink(&self, me: Me) -> PortalsResult<()> {
        // SAFETY: the function takes a handle that `append` gave.
        self.call("PtlMEUnlink", || unsafe {
            (self.library.symbols.me_unlink)(me.0)
        })
    }
}

impl PortalsNi {
    /// Unlinks an entry, with up to `tries` retries while it is in use. Returns true if it is still in use.
    pub(super) fn is_kept(&self, me: Me, tries: u32) -> bool {
        let mut all = 0..=tries;
        all.all(|_| {
            let in_use = matches!(self.unlink(me), Err(PortalsCallError::InUse));
            if in_use {
                std::thread::yield_now();
            }
            in_use
        })
    }
}

impl EntryKind {
    const fn options(self, profile: &LibraryProfile) -> u32 {
        let options = &profile.options;
        let quiet = options.me_event_link_disable | options.me_event_unlink_disable;
        match self {
            Self::Slab { last, .. } => {
                // Messages in the slab are reported on arrival, so entries appended later must not find them as unexpected.
                let last = if last {
                    options.me_unexpected_hdr_disable
                } else {
                    0
                };
                quiet | options.me_op_put | options.me_manage_local | options.me_no_truncate | last
            }
            Self::Once { .. } => {
                quiet | options.me_op_put | options.me_use_once | options.me_no_truncate
            }
            Self::Board => quiet | options.me_op_put | options.me_no_truncate,
            Self::Exposed => {
                quiet
                    | options.me_op_put
                    | options.me_op_get
                    | options.me_no_truncate
                    | options.me_event_comm_disable
            }
            Self::ExposedTruncating => {
                quiet | options.me_op_put | options.me_op_get | options.me_event_comm_disable
            }
        }
    }
}

const PRIORITY_LIST: u32 = 0;
const OVERFLOW_LIST: u32 = 1;
