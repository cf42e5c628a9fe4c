//! Tests of spans, byte by byte, and of what a builder refuses.

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

use super::{
    BufferLens, BufferSpan, CommRank, OperandSide, ProgramBuffer, ProgramBuilder, ProgramStepId,
    StepAction,
};

/// Returns the bytes of a span, in order.
fn bytes(span: &BufferSpan) -> Vec<isize> {
    let byte = |i: usize| {
        let (run, at) = if span.is_contiguous() {
            (0, i)
        } else {
            (i / span.run, i % span.run)
        };
        let [start, run, at] = [span.start, run, at].map(usize::cast_signed);
        start + run * span.stride + at
    };
    (0..span.len).map(byte).collect()
}

fn spans() -> impl Strategy<Value = BufferSpan> {
    let shape = (0_usize..60, 0_usize..30, 1_usize..12, -15_isize..15);
    let span =
        |(start, len, run, stride)| ProgramBuffer::Scratch.span(start, len).in_runs(run, stride);
    shape.prop_map(span)
}

proptest! {
    #[test]
    fn bounds_are_the_least_range_around_all_bytes(span in spans()) {
        let all = bytes(&span);
        let inside = all.iter().all(|&at| at >= 0);
        match span.bounds() {
            None => prop_assert!(!inside),
            Some(bounds) if span.len > 0 => {
                prop_assert!(inside);
                let least = all.iter().min().map(|&at| at.cast_unsigned());
                let most = all.iter().max().map(|&at| at.cast_unsigned() + 1);
                prop_assert_eq!((Some(bounds.start), Some(bounds.end)), (least, most));
            }
            Some(_) => {}
        }
    }

    #[test]
    fn spans_meet_where_they_share_a_byte(one in spans(), other in spans()) {
        let inside = one.bounds().is_some() && other.bounds().is_some();
        let shares = bytes(&one).iter().any(|at| bytes(&other).contains(at));
        if inside && one.is_disjoint() && other.is_disjoint() {
            prop_assert_eq!(one.overlaps(&other), shares);
        } else {
            prop_assert!(one.overlaps(&other) || !shares);
        }
    }

    #[test]
    fn pieces_pair_the_bytes_of_both(one in spans(), other in spans()) {
        let len = one.len.min(other.len);
        let cut = |span: BufferSpan| BufferSpan { len, ..span };
        let (one, other) = (cut(one), cut(other));
        if one.bounds().is_some() && other.bounds().is_some() {
            let pieces = one.pieces(other).flat_map(|(a, b, len)| (a..a + len).zip(b..b + len));
            let pairs = bytes(&one).into_iter().zip(bytes(&other));
            let pairs = pairs.map(|(a, b)| (a.cast_unsigned(), b.cast_unsigned()));
            prop_assert!(pieces.eq(pairs));
        }
    }
}

const LENS: BufferLens = BufferLens {
    input: 64,
    output: 64,
    scratch: 64,
};

/// Returns the error of a builder of 8-byte elements.
fn refusal(action: StepAction) -> String {
    let mut builder = ProgramBuilder::new::<u64>(4, LENS);
    let misfit = builder.push(action, &[]).expect_err("it does not fit");
    misfit.to_string()
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let whole = ProgramBuffer::Output.span(0, 64);
    let send = |to, from| {
        refusal(StepAction::Send {
            to: CommRank(to),
            from,
        })
    };
    assert_eq!(
        send(4, whole),
        "step 0: `to` is rank 4, and there are ranks 0..4"
    );
    assert!(send(0, ProgramBuffer::Input.span(8, 64)).contains("of a buffer of 64 bytes"));
    assert!(send(0, ProgramBuffer::Input.span(usize::MAX, 8)).contains("of a buffer"));
    assert!(send(0, ProgramBuffer::Input.span(4, 8)).contains("elements of 8 bytes"));
    assert!(send(0, whole.in_runs(0, 8)).contains("of a buffer"));
    assert!(send(0, whole.in_runs(8, isize::MIN)).contains("of a buffer"));
    let copy = |from, into| refusal(StepAction::Copy { from, into });
    assert!(copy(whole, ProgramBuffer::Input.span(0, 64)).contains("cannot write the input"));
    assert!(copy(whole, ProgramBuffer::Scratch.span(0, 32)).contains("different lengths"));
    assert!(
        copy(
            ProgramBuffer::Output.span(0, 16),
            ProgramBuffer::Output.span(8, 16)
        )
        .contains("overlap")
    );
    let dense = ProgramBuffer::Scratch.span(0, 32).in_runs(16, 8);
    assert!(copy(ProgramBuffer::Output.span(0, 32), dense).contains("its runs overlap"));
    let mut builder = ProgramBuilder::new::<u64>(4, LENS);
    let misfit = builder
        .push(StepAction::Join, &[ProgramStepId(0)])
        .expect_err("itself");
    assert!(misfit.to_string().contains("does not precede it"));
}

#[test]
fn messages_in_runs_go_by_scratch_memory_of_their_own() {
    let mut builder = ProgramBuilder::new::<u64>(4, LENS);
    let runs = ProgramBuffer::Output.span(0, 32).in_runs(8, 16);
    let first = builder
        .push(
            StepAction::Recv {
                from: CommRank(1),
                into: runs,
            },
            &[],
        )
        .expect("good");
    let reduce = StepAction::Reduce {
        from: runs,
        into: ProgramBuffer::Scratch.span(0, 32),
        side: OperandSide::Left,
    };
    let second = builder.push(reduce, &[first]).expect("good");
    builder
        .push(
            StepAction::Send {
                to: CommRank(1),
                from: runs,
            },
            &[second],
        )
        .expect("good");
    let program = builder.finish();
    assert_eq!((program.len(), program.lens().scratch), (5, 128));
    assert!(program.reduces());
    let rows = program.actions().filter(|action| match action {
        StepAction::Send { from, .. } => from.is_contiguous(),
        StepAction::Recv { into, .. } => into.is_contiguous(),
        _ => false,
    });
    assert_eq!(rows.count(), 2);
    let order: Vec<_> = (0..5)
        .map(|at| program.successors(at).collect::<Vec<_>>())
        .collect();
    assert_eq!(order, [vec![1], vec![2], vec![3], vec![4], vec![]]);
}
