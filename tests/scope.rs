//! Borrowed buffers in a scope.

#[path = "support/ranks.rs"]
mod ranks;

use std::panic::{self, AssertUnwindSafe};

use ripstop::{ErrorKind, Source};

const LENGTHS: [usize; 4] = [0, 3, 1000, 1 << 17];

#[test]
fn borrowed_elements_cross_without_a_copy_of_ours() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let (me, other) = (world.rank(), 1 - world.rank());
        for len in LENGTHS {
            let content = |rank: usize| (0..len).map(|at| (2 * at + rank) as f64).collect();
            let mine: Vec<f64> = content(me);
            let mut theirs = vec![f64::NAN; len];
            let status = runtime.scope(|s| {
                let arrives = s.recv(&world, other, 7, &mut theirs);
                let leaves = s.send(&world, other, 7, &mine);
                assert_eq!(leaves.wait().unwrap().source, me);
                arrives.wait().unwrap()
            });
            assert_eq!((status.source, status.tag, status.len), (other, 7, len));
            assert!(theirs == content(other), "{len}");
        }
        runtime.close().unwrap();
    });
}

#[test]
fn the_end_of_a_scope_waits_for_unawaited_operations() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        if world.rank() == 0 {
            let mut all = vec![0_u32; 300_000];
            let (front, rear) = all.split_at_mut(100_000);
            runtime.scope(|s| {
                let _later = s.recv(&world, Source::Any, 1, front);
                let _later = s.recv(&world, Source::Any, 2, rear);
            });
            assert!(all[..100_000].iter().all(|&word| word == 1));
            assert!(all[100_000..].iter().all(|&word| word == 2));
        } else {
            let (ones, twos) = (vec![1_u32; 100_000], vec![2_u32; 200_000]);
            runtime.scope(|s| {
                let _later = s.send(&world, 0, 2, &twos);
                let _later = s.send(&world, 0, 1, &ones);
            });
        }
        runtime.close().unwrap();
    });
}

#[test]
fn an_unawaited_error_panics_and_an_awaited_error_is_a_value() {
    ranks::run(1, &[], |runtime| {
        let world = runtime.world();
        let error = runtime.scope(|s| s.send(&world, 7, 0, &[1_u8]).wait().unwrap_err());
        assert!(error.to_string().contains("rank 7"), "{error}");
        let ignored = AssertUnwindSafe(|| {
            runtime.scope(|s| {
                let _ignored = s.send(&world, 7, 0, &[1_u8]);
            });
        });
        let panic = panic::catch_unwind(ignored).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("rank 7") && text.contains("scope"), "{text}");
    });
}

#[test]
fn a_panic_takes_receives_and_sends_back() {
    ranks::run(1, &[], |runtime| {
        let world = runtime.world();
        let (mut inbox, long) = ([0_u8; 64], vec![5_u8; 1 << 20]);
        let body = AssertUnwindSafe(|| {
            runtime.scope(|s| {
                let _never = s.recv(&world, 0, 1, &mut inbox);
                let _nobody = s.send(&world, 0, 2, &long);
                panic!("of the body");
            });
        });
        let panic = panic::catch_unwind(body).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the body"));
        let late = runtime.block_on(world.send(0, 1, vec![9_u8; 64]));
        assert_eq!(late.unwrap().len(), 64);
        let (kept, _) = runtime.block_on(world.recv::<u8>(0, 1)).unwrap();
        assert_eq!((kept, inbox), (vec![9; 64], [0; 64]));
        let gone = runtime.block_on(world.recv::<u8>(0, 2).timeout(std::time::Duration::ZERO));
        assert!(matches!(gone.unwrap_err().error.kind, ErrorKind::TimedOut));
    });
}
