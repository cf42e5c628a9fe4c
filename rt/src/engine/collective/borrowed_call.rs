//! A collective call as it is made: nothing of it is stored until it has to wait.

use std::panic::Location;

use super::{ExecutionRequest, RunCall};
use crate::{
    group::RankGroup,
    offload::{BufferLens, CollectiveProgram},
    ops::{BufferArea, ErasedReducer},
    proto::collective_id::CollectiveId,
};

/// A collective call whose program, group and reduction belong to the caller, or to a [`RunCall`].
#[derive(Debug)]
pub(crate) struct BorrowedCall<'a> {
    pub(crate) id: CollectiveId,
    pub(crate) sig: u64,
    /// Source line of the call.
    pub(crate) at: &'static Location<'static>,
    pub(crate) group: &'a RankGroup,
    pub(crate) program: &'a CollectiveProgram,
    pub(crate) reducer: Option<&'a ErasedReducer>,
    /// How the program is to run.
    pub(crate) request: ExecutionRequest,
}

impl RunCall {
    /// Returns the same call, borrowed.
    #[inline]
    pub(in crate::engine) fn borrowed(&self) -> BorrowedCall<'_> {
        BorrowedCall {
            id: self.id(),
            sig: self.sig,
            at: self.at,
            group: &self.group,
            program: &self.program,
            reducer: self.reducer.as_ref(),
            request: self.request,
        }
    }
}

impl BorrowedCall<'_> {
    /// Returns what is wrong with the call, if anything is. `areas` are those of the two buffers.
    #[inline]
    pub(super) fn misfit(&self, areas: [BufferArea; 2]) -> Option<String> {
        let bytes = areas.map(|area| area.len);
        let BufferLens { input, output, .. } = self.program.lens();
        let (ranks, size) = (self.program.ranks(), self.group.len());
        let elem = self.program.elem().size;
        Some(if ranks != size {
            format!("`program` is for {ranks} ranks, and the communicator has {size}")
        } else if bytes[0] < input {
            let (has, needed) = (bytes[0] / elem, input / elem);
            format!("`send` has {has} elements, and {needed} are needed")
        } else if bytes[1] < output {
            let (has, needed) = (bytes[1] / elem, output / elem);
            format!("`recv` has room for {has} elements, and {needed} are needed")
        } else if !self.reducer_fits() {
            "`reducer` is not for the elements of the program".to_owned()
        } else if self.program.reduces() && !self.is_aligned(areas) {
            "a buffer is not aligned for the elements of the reduction".to_owned()
        } else {
            return None;
        })
    }

    /// Returns true if both buffers are aligned for the elements of a reduction.
    fn is_aligned(&self, [input, output]: [BufferArea; 2]) -> bool {
        let BufferLens {
            input: reads,
            output: fills,
            ..
        } = self.program.lens();
        let align = self.program.elem().align;
        let aligned = |area: BufferArea, len: usize| {
            len == 0 || area.start.addr().get().is_multiple_of(align)
        };
        aligned(input, reads) && aligned(output, fills)
    }

    fn reducer_fits(&self) -> bool {
        let fits = |reducer: &ErasedReducer| reducer.fits(self.program.elem());
        !self.program.reduces() || self.reducer.is_some_and(fits)
    }
}
