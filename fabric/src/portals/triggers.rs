//! Counters of an interface, and operations triggered by them.
#![expect(unsafe_code, reason = "calls C functions")]

use std::ffi::c_int;

use super::{
    calls::{Ct, Eq, Md, PortalsCallError, PortalsNi, PortalsResult},
    library::TriggerSymbols,
    rma_calls::{MdSpan, RemoteTarget},
    struct_buffer::StructBuffer,
};
use crate::offload::TypedOperator;

/// Value of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CtValue {
    pub(super) success: u64,
    pub(super) failure: u64,
}

impl CtValue {
    /// Returns the sum that triggered operations are compared with.
    pub(super) const fn sum(self) -> u64 {
        self.success.saturating_add(self.failure)
    }
}

impl PortalsNi {
    /// Returns true if the library has the functions that this file calls.
    pub(super) const fn has_triggers(&self) -> bool {
        self.library.triggers.is_some()
    }

    pub(super) fn ct_alloc(&self) -> PortalsResult<Ct> {
        let mut ct = StructBuffer::default();
        // SAFETY: the place is long enough.
        self.trigger("PtlCTAlloc", |triggers| unsafe {
            (triggers.ct_alloc)(self.ni, ct.write())
        })?;
        Ok(Ct(ct.get(0, self.profile().handle_len)))
    }

    /// Frees a counter and drops the operations that wait for it.
    pub(super) fn ct_free(&self, ct: Ct) {
        // SAFETY: the function takes a handle that `ct_alloc` gave.
        let _freed = self.trigger("PtlCTFree", |triggers| unsafe { (triggers.ct_free)(ct.0) });
    }

    /// Drops the operations that wait for a counter.
    pub(super) fn ct_cancel(&self, ct: Ct) {
        // SAFETY: the function takes a handle that `ct_alloc` gave.
        let _cancelled = self.trigger("PtlCTCancelTriggered", |triggers| unsafe {
            (triggers.ct_cancel)(ct.0)
        });
    }

    /// Returns the value of a counter, or zero if the interface is closed.
    pub(super) fn ct_get(&self, ct: Ct) -> CtValue {
        let mut count = StructBuffer::default();
        // SAFETY: the place is long enough.
        let read = self.trigger("PtlCTGet", |triggers| unsafe {
            (triggers.ct_get)(ct.0, count.write())
        });
        read.map_or_else(
            |_| CtValue::default(),
            |()| CtValue {
                success: count.get(0, 8),
                failure: count.get(8, 8),
            },
        )
    }

    /// Resets a counter to zero. Nothing may add to the counter at the same time.
    pub(super) fn ct_reset(&self, ct: Ct) {
        // SAFETY: the function takes numbers only.
        let _set = self.trigger("PtlCTSet", |triggers| unsafe {
            (triggers.ct_set)(ct.0, 0, 0)
        });
    }

    pub(super) fn ct_inc(&self, ct: Ct, by: u64) -> PortalsResult<()> {
        // SAFETY: the function takes numbers only.
        self.trigger("PtlCTInc", |triggers| unsafe {
            (triggers.ct_inc)(ct.0, by, 0)
        })
    }

    /// Binds a descriptor for all memory, whose operations count at `ct` when they are acknowledged, and post an event to `eq`
    /// when they fail.
    pub(super) fn md_bind_counting(&self, ct: Ct, eq: Eq) -> PortalsResult<Md> {
        let profile = self.profile();
        let options = &profile.options;
        let all = options.md_event_success_disable
            | options.md_event_send_disable
            | options.md_event_ct_ack;
        let mut md = StructBuffer::default();
        md.put(8, 8, profile.any.size);
        md.put(16, 4, all.into());
        md.put(profile.layout.md_eq, profile.handle_len, eq.0);
        md.put(profile.layout.md_ct, profile.handle_len, ct.0);
        let mut place = StructBuffer::default();
        // SAFETY: the structure is as the family lays it out, and the place is long enough.
        self.call("PtlMDBind", || unsafe {
            (self.library.symbols.md_bind)(self.ni, md.read(), place.write())
        })?;
        Ok(Md(place.get(0, profile.handle_len)))
    }

    /// Releases a descriptor. Fails as `InUse` while an operation may access memory through it.
    pub(super) fn md_release(&self, md: Md) -> PortalsResult<()> {
        // SAFETY: the function takes a handle that `md_bind` gave.
        self.trigger("PtlMDRelease", |triggers| unsafe {
            (triggers.md_release)(md.0)
        })
    }

    /// Starts an acknowledged put when a counter reaches a value.
    pub(super) fn put_when(
        &self,
        span: MdSpan,
        remote: RemoteTarget,
        header: u64,
        when: (Ct, u64),
    ) -> PortalsResult<()> {
        let ack = self.profile().options.ack_req;
        // SAFETY: the function takes numbers only; memory was named to the descriptor.
        self.trigger("PtlTriggeredPut", |triggers| unsafe {
            (triggers.triggered_put)(
                span.md.0,
                span.offset,
                span.len,
                ack,
                remote.process.bits(),
                remote.pt,
                remote.match_bits,
                remote.offset,
                span.user,
                header,
                when.0.0,
                when.1,
            )
        })
    }

    /// Returns true if the library has triggered atomics.
    pub(super) const fn has_triggered_atomics(&self) -> bool {
        self.library.combining.is_some()
    }

    /// Starts an acknowledged atomic when a counter reaches a value.
    pub(super) fn combine_when(
        &self,
        span: MdSpan,
        remote: RemoteTarget,
        how: TypedOperator,
        when: (Ct, u64),
    ) -> PortalsResult<()> {
        let missing = || {
            PortalsCallError::Permanent("the Portals library has no PtlTriggeredAtomic".to_owned())
        };
        let combining = self.library.combining.as_ref().ok_or_else(missing)?;
        let profile = self.profile();
        // SAFETY: the function takes numbers only; memory was named to the descriptor.
        self.call("PtlTriggeredAtomic", || unsafe {
            (combining.triggered_atomic)(
                span.md.0,
                span.offset,
                span.len,
                profile.options.ack_req,
                remote.process.bits(),
                remote.pt,
                remote.match_bits,
                remote.offset,
                span.user,
                0,
                profile.operators.operator(how.operator),
                profile.operators.integer(how.integer),
                when.0.0,
                when.1,
            )
        })
    }

    /// Adds to a counter when a counter, possibly the same, reaches a value.
    pub(super) fn inc_when(&self, ct: Ct, by: u64, when: (Ct, u64)) -> PortalsResult<()> {
        // SAFETY: the function takes numbers only.
        self.trigger("PtlTriggeredCTInc", |triggers| unsafe {
            (triggers.triggered_inc)(ct.0, by, 0, when.0.0, when.1)
        })
    }

    fn trigger(
        &self,
        name: &str,
        call: impl FnOnce(&TriggerSymbols) -> c_int,
    ) -> PortalsResult<()> {
        let missing = || PortalsCallError::Permanent(format!("the Portals library has no {name}"));
        let triggers = self.library.triggers.as_ref().ok_or_else(missing)?;
        self.call(name, || call(triggers))
    }
}
