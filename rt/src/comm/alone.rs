//! Collectives of one rank, which complete at their call: nothing is awaited, so there is no program, no handle and no waker.

use super::{Comm, program::CollectivePlace, program::ProgramOp};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::SingleRoundPoll,
    offload::{CollectiveSpec, LocalCopy},
    proto::collective_id::CollectiveId,
};

impl Comm {
    /// Does a collective of this rank alone, in its reserved position.
    ///
    /// Anything unusual (a buffer that is too short, a revoked communicator, a runtime that is closing) takes the way of all
    /// collectives, which has the errors.
    #[inline(always)]
    pub(crate) fn complete_alone<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        name: &'static str,
        copy: LocalCopy,
        input: I,
        mut output: O,
    ) -> ProgramOp<I, O> {
        if self.may_complete_alone(place.call.tag) && copy.apply(&input, &mut output) {
            return ProgramOp::completed(name, (input, output));
        }
        self.begin_alone(place, name, copy, input, output)
    }

    /// Returns true if nothing unusual is known about the collective of this number. Makes a turn now and then.
    fn may_complete_alone(&self, sequence: u32) -> bool {
        let id = CollectiveId::new(self.id() + 1, sequence);
        let look = self
            .shared()
            .poll_condition(|engine| engine.core.poll_alone(id));
        look == SingleRoundPoll::Done
    }

    #[cold]
    #[inline(never)]
    fn begin_alone<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        name: &'static str,
        copy: LocalCopy,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        let collective = CollectiveSpec::plain(name, copy.program(output.elems()));
        self.begin_program(place, collective, None, input, output)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use crate::{
        Runtime,
        comm::CollectivePlace,
        error::ErrorKind,
        offload::{LocalCopy, ProgramOp},
    };

    #[test]
    fn a_call_of_one_rank_completes_at_once_or_has_the_errors_of_all_collectives() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        let call = |input: Vec<u32>, output: Vec<u32>| -> ProgramOp<Vec<u32>, Vec<u32>> {
            let place = CollectivePlace::reserve(&world);
            world.complete_alone(place, "gather_into", LocalCopy::Bytes(8), input, output)
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
