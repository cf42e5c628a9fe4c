//! A guest of the driver: another layout of messages, with a portal table entry and an event queue of its own on the driver's
//! interface.
//!
//! Benchmarks compare the driver with such layouts (`benches/baselines`). The driver takes no event of a guest. It only ends a
//! sleep when there is one.

use std::{io, sync::Arc};

use super::{
    calls::{Md, PortalsCallError, PortalsNi},
    driver_state::Portals,
    event::{PortalsEventKind, PortalsOutcome, PortalsProcess},
    event_queues::EventQueueKind,
    match_entries::{EntryKind, MatchEntry},
    prepare::{PreparedPortals, queue},
    rma_calls::{MdSpan, RemoteTarget},
};
use crate::memory::MemoryRegion;

/// A guest's table entry and queue on an interface, without memory. For benchmarks only.
#[derive(Debug)]
#[doc(hidden)]
pub struct PreparedGuest {
    ni: Arc<PortalsNi>,
    md: Md,
    address: GuestAddress,
}

/// A guest with memory for its messages.
///
/// The library accesses only the two regions of the port. They stay mapped until the interface is closed, which dropping the
/// driver or the port does.
#[derive(Debug)]
#[doc(hidden)]
pub struct GuestPort {
    guest: PreparedGuest,
    inbound: MemoryRegion,
    outbound: MemoryRegion,
}

/// How other ranks reach a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct GuestAddress {
    process: PortalsProcess,
    /// Random number of this run of the process.
    nonce: u32,
    table: u32,
}

/// Result of a call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
#[expect(clippy::exhaustive_enums, reason = "a guest handles every result")]
pub enum GuestCall {
    Done,
    /// The library has no room now.
    Later,
    Refused,
}

/// An event of a guest's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
#[expect(clippy::exhaustive_enums, reason = "a guest handles every event")]
pub enum GuestEvent {
    /// `len` bytes have arrived in the entry that was appended with `user`.
    Arrived { user: u64, header: u64, len: u64 },
    /// The put that was started with `user` has ended.
    Ended { user: u64, end: GuestPutEnd },
    /// An event that means nothing here.
    Nonsense,
}

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
#[expect(clippy::exhaustive_enums, reason = "a guest handles every end")]
pub enum GuestPutEnd {
    Taken,
    /// The target had no entry for it.
    Dropped,
    Unreachable,
}

impl PreparedPortals {
    /// Adds a guest whose queue has room for `events` arrivals and as many ends of puts.
    ///
    /// # Errors
    /// The error of the library, or of the system if it has no threads left.
    #[doc(hidden)]
    pub fn add_guest(&mut self, events: u32) -> io::Result<PreparedGuest> {
        let ni = Arc::clone(&self.resources.ni);
        let eq = queue(&ni, events.saturating_mul(2))?;
        let address = GuestAddress {
            process: self.address.process,
            nonce: self.address.nonce,
            table: ni.pt_alloc(None, Some(eq), false)?,
        };
        self.resources.queues.add_guest(eq)?;
        Ok(PreparedGuest {
            md: ni.md_bind(None, eq)?,
            ni,
            address,
        })
    }
}

impl PreparedGuest {
    #[must_use]
    pub const fn address(&self) -> GuestAddress {
        self.address
    }

    /// Allocates the memory that messages arrive in and leave from.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn allocate(self, inbound: usize, outbound: usize) -> io::Result<GuestPort> {
        Ok(GuestPort {
            guest: self,
            inbound: MemoryRegion::vacant(inbound)?,
            outbound: MemoryRegion::vacant(outbound)?,
        })
    }
}

impl GuestPort {
    #[must_use]
    pub const fn inbound(&self) -> &MemoryRegion {
        &self.inbound
    }

    #[must_use]
    pub const fn outbound(&self) -> &MemoryRegion {
        &self.outbound
    }

    /// Appends an entry for one message from a rank, in these bytes of [`inbound`](Self::inbound).
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn append(&self, at: usize, len: usize, from: GuestAddress, user: u64) -> GuestCall {
        let entry = MatchEntry {
            memory: Some(self.inbound.range().slice(at, len)),
            kind: EntryKind::Once { from: from.process },
            match_bits: self.guest.address.match_bits(),
            ignore_bits: 0,
        };
        let PreparedGuest { ni, address, .. } = &self.guest;
        result(ni.append(address.table, &entry, user).map(drop))
    }

    /// Puts these bytes of [`outbound`](Self::outbound) to a rank.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn put(
        &self,
        at: usize,
        len: usize,
        to: GuestAddress,
        user: u64,
        header: u64,
    ) -> GuestCall {
        let range = self.outbound.range().slice(at, len);
        let span = MdSpan {
            md: self.guest.md,
            offset: range.start().as_ptr().expose_provenance() as u64,
            len: range.len() as u64,
            user,
        };
        let remote = RemoteTarget {
            process: to.process,
            pt: to.table,
            match_bits: to.match_bits(),
            offset: 0,
        };
        result(self.guest.ni.put(span, remote, header, true))
    }
}

impl Drop for GuestPort {
    /// Closes the interface before the memory is freed.
    fn drop(&mut self) {
        self.guest.ni.close();
    }
}

impl GuestAddress {
    /// Bytes of an encoded address.
    pub const LEN: usize = 16;

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let Self { process, .. } = self;
        bytemuck::cast([process.nid, process.pid, self.nonce, self.table].map(u32::to_le))
    }

    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let words: [u32; 4] = bytemuck::cast(bytes);
        let [nid, pid, nonce, table] = words.map(u32::from_le);
        Self {
            process: PortalsProcess { nid, pid },
            nonce,
            table,
        }
    }

    /// Returns bits that differ between this run of the rank and earlier processes with the same address.
    const fn match_bits(self) -> u64 {
        self.nonce as u64
    }
}

impl Portals {
    /// Takes the next event of the guest. If events were lost, all peers are reported as failed.
    #[doc(hidden)]
    pub fn next_guest_event(&mut self) -> Option<GuestEvent> {
        let got = self.transport.next(EventQueueKind::Guest)?;
        if got.dropped {
            self.handle_loss();
        }
        let (event, taken) = (got.event, got.event.end == PortalsOutcome::Success);
        let is_ack = event.kind == PortalsEventKind::Ack;
        self.transport
            .resources
            .counters
            .all
            .acks
            .add(u64::from(is_ack));
        Some(match event.kind {
            PortalsEventKind::Put if taken => GuestEvent::Arrived {
                user: event.user,
                header: event.header,
                len: event.mlength,
            },
            PortalsEventKind::Ack => GuestEvent::Ended {
                user: event.user,
                end: GuestPutEnd::of(event.end),
            },
            // Some libraries report a failure by such an event, alone or before the acknowledgment.
            PortalsEventKind::Send | PortalsEventKind::Error if !taken => GuestEvent::Ended {
                user: event.user,
                end: GuestPutEnd::of(event.end),
            },
            _ => GuestEvent::Nonsense,
        })
    }
}

impl GuestPutEnd {
    const fn of(end: PortalsOutcome) -> Self {
        match end {
            PortalsOutcome::Success => Self::Taken,
            PortalsOutcome::Dropped | PortalsOutcome::PtDisabled => Self::Dropped,
            _ => Self::Unreachable,
        }
    }
}

fn result(called: Result<(), PortalsCallError>) -> GuestCall {
    match called {
        Ok(()) => GuestCall::Done,
        Err(PortalsCallError::Transient(_)) => GuestCall::Later,
        Err(_) => GuestCall::Refused,
    }
}
