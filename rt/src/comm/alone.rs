//! Collectives of one rank, which complete at their call: nothing is awaited, so there is no program, no handle and no waker.

use super::{CollectiveCall, Comm, program::CollectivePlace, program::ProgramOp};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::CollectiveExecution,
    offload::{CollectiveSpec, LocalCopy},
    proto::collective_id::CollectiveId,
};

/// A rank makes a turn once in this many collectives of a communicator, because these alone make none.
const TURN_EVERY: u32 = 32;

impl Comm {
    /// Does the next collective of this rank alone.
    ///
    /// Anything unusual (a buffer that is too short, a revoked communicator, a runtime that is closing) takes the way of all
    /// collectives, which has the errors.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn complete_alone<I: SendBuf, O: RecvBuf>(
        &self,
        name: &'static str,
        copy: LocalCopy,
        input: I,
        mut output: O,
    ) -> ProgramOp<I, O> {
        let call = self.next_collective();
        if self.is_done_alone(call, copy, &input, &mut output) {
            ProgramOp::completed(name, input, output)
        } else {
            self.begin_alone(call, name, copy, input, output)
        }
    }

    /// Does the next collective of this rank alone, between buffers that are only borrowed.
    ///
    /// # Errors
    /// Something is unusual: the collective, which has this place, must be begun in the way of all collectives.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn try_alone<I: SendBuf, O: RecvBuf>(
        &self,
        copy: LocalCopy,
        input: &I,
        output: &mut O,
    ) -> Result<(), CollectivePlace> {
        let call = self.next_collective();
        if self.is_done_alone(call, copy, input, output) {
            return Ok(());
        }
        Err(CollectivePlace::of(call))
    }

    /// Does this collective unless something is unusual. Returns true if it is done.
    #[inline(always)]
    fn is_done_alone<I: SendBuf, O: RecvBuf>(
        &self,
        call: CollectiveCall,
        copy: LocalCopy,
        input: &I,
        output: &mut O,
    ) -> bool {
        if call.tag.is_multiple_of(TURN_EVERY) {
            self.shared().make_due_turn();
        }
        let id = CollectiveId::new(self.id() + 1, call.tag);
        let is_usual = self.shared().look(|engine| engine.core.is_calm_here(id));
        CollectiveExecution::of_copy(is_usual) == CollectiveExecution::AtCall
            && copy.apply(input, output)
    }

    #[cold]
    #[inline(never)]
    fn begin_alone<I: SendBuf, O: RecvBuf>(
        &self,
        call: CollectiveCall,
        name: &'static str,
        copy: LocalCopy,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        let collective = CollectiveSpec::plain(name, copy.program(output.elems()));
        self.begin_program(CollectivePlace::of(call), collective, None, input, output)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use crate::{
        Runtime,
        error::ErrorKind,
        offload::{LocalCopy, ProgramOp},
    };

    #[test]
    fn a_call_of_one_rank_completes_at_once_or_has_the_errors_of_all_collectives() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        let call = |input: Vec<u32>, output: Vec<u32>| -> ProgramOp<Vec<u32>, Vec<u32>> {
            world.complete_alone("gather_into", LocalCopy::Bytes(8), input, output)
        };
        runtime.block_on(async {
            let done = call(vec![1, 2, 3], vec![0; 4]);
            assert!(done.is_done());
            assert_eq!(done.await.unwrap(), (vec![1, 2, 3], vec![1, 2]));
            let short = call(vec![1], vec![0; 4]).await.unwrap_err();
            let said = short.error.to_string();
            assert!(
                said.contains("`send` has 1 elements, and 2 are needed"),
                "{said}"
            );
            assert_eq!(short.buf.0, [1]);
            let later = call(vec![1, 2], vec![0; 2]).await.unwrap_err();
            assert!(
                matches!(later.error.kind, ErrorKind::Revoked),
                "{}",
                later.error
            );
        });
    }
}
