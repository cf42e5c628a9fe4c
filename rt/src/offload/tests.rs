//! Tests of spans, byte by byte, and of which plans are refused.

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

use super::{
    BufferSpan, CollectiveProgram, CommRank, OperandSide, Plan, ProgramBuffer, ProgramStepId,
    StepAction, StepError,
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

/// Makes the program of these steps, each of which waits for the one before it, on buffers of 8 elements of 8 bytes.
fn program(steps: &[StepAction]) -> Result<CollectiveProgram, StepError> {
    let mut plan = Plan::new(0, 4);
    plan.add_scratch(8);
    let mut last = Vec::new();
    for &action in steps {
        last = vec![plan.push(action, &last)];
    }
    plan.program::<u64>(8, 8)
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refusal = |action| {
        let misfit = program(&[StepAction::Join, action]).expect_err("it does not fit");
        misfit.to_string()
    };
    let whole = ProgramBuffer::Output.span(0, 8);
    let send = |to, from| {
        refusal(StepAction::Send {
            to: CommRank(to),
            from,
        })
    };
    assert_eq!(
        send(4, whole),
        "step 1: `to` is rank 4, and there are ranks 0..4"
    );
    assert!(send(0, ProgramBuffer::Input.span(1, 8)).contains("of a buffer of 8 elements"));
    assert!(send(0, ProgramBuffer::Input.span(usize::MAX, 1)).contains("of a buffer"));
    assert!(send(0, whole.in_runs(0, 1)).contains("of a buffer"));
    assert!(send(0, whole.in_runs(1, isize::MIN)).contains("of a buffer"));
    let copy = |from, into| refusal(StepAction::Copy { from, into });
    assert!(copy(whole, ProgramBuffer::Input.span(0, 8)).contains("cannot write the input"));
    assert!(copy(whole, ProgramBuffer::Scratch.span(0, 4)).contains("different lengths"));
    assert!(
        copy(
            ProgramBuffer::Output.span(0, 2),
            ProgramBuffer::Output.span(1, 2)
        )
        .contains("overlap")
    );
    let dense = ProgramBuffer::Scratch.span(0, 4).in_runs(2, 1);
    assert!(copy(ProgramBuffer::Output.span(0, 4), dense).contains("its runs overlap"));
    let mut plan = Plan::new(0, 4);
    plan.push(StepAction::Join, &[ProgramStepId(0)]);
    let misfit = plan.program::<u64>(0, 0).expect_err("it waits for itself");
    assert!(misfit.to_string().contains("does not precede it"));
}

#[test]
fn elements_become_bytes_wherever_a_span_lies() {
    let copy = StepAction::Copy {
        from: ProgramBuffer::Input.span(6, 4).in_runs(2, -3),
        // A span of one run is contiguous, whatever its stride.
        into: ProgramBuffer::Output.span(1, 4).in_runs(5, isize::MAX),
    };
    let program = program(&[copy]).expect("good");
    let lens = program.lens();
    assert_eq!([lens.input, lens.output, lens.scratch], [64; 3]);
    let bytes = StepAction::Copy {
        from: ProgramBuffer::Input.span(48, 32).in_runs(16, -24),
        into: ProgramBuffer::Output.span(8, 32),
    };
    assert!(program.actions().eq([&bytes]));
}

#[test]
fn messages_in_runs_go_by_scratch_memory_of_their_own() {
    let runs = ProgramBuffer::Output.span(0, 4).in_runs(1, 2);
    let recv = StepAction::Recv {
        from: CommRank(1),
        into: runs,
    };
    let reduce = StepAction::Reduce {
        from: runs,
        into: ProgramBuffer::Scratch.span(0, 4),
        side: OperandSide::Left,
    };
    let send = StepAction::Send {
        to: CommRank(1),
        from: runs,
    };
    let program = program(&[recv, reduce, send]).expect("good");
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
