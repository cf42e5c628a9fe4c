//! Updates of numbers, and blocks.

use ripstop::{
    BitAnd, BitOr, BitXor, Collectives, Comm, Located, Max, MaxLoc, Min, MinLoc, Product, Sum,
    Window,
    buffer::Layout,
    rma::{Combine, NoOp, Replace},
};

use crate::worlds::{Rank, everywhere};

#[test]
fn updates_of_all_ranks_are_atomic_for_each_element() {
    const TIMES: u32 = 50;
    fn all(world: Comm) -> Rank {
        Box::pin(async move {
            let size = u32::try_from(world.size()).unwrap();
            let mut window = Window::<f64>::allocate(&world, 3).await.unwrap();
            let mut counts = Window::<u32>::allocate(&world, 1).await.unwrap();
            let epoch = window.fence().await.unwrap();
            let counting = counts.fence().await.unwrap();
            let mut seen = Vec::new();
            for _ in 0..TIMES {
                epoch.accumulate(0, 0, [1.0, 2.0, 0.5], Sum).detach();
                seen.push(counting.fetch_add(0, 0, 1).await.unwrap());
            }
            assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
            let mine = epoch.end().await.unwrap();
            let total = counting.end().await.unwrap();
            if world.rank() == 0 {
                let times = f64::from(TIMES * size);
                assert_eq!(mine, [times, 2.0 * times, 0.5 * times]);
                assert_eq!(total, [TIMES * size]);
            }
        })
    }
    everywhere(3, all);
}

/// All ranks update the same numbers of rank 0, many at a time and singly, while rank 0 looks at them.
async fn update_many_and_single_numbers(world: Comm, first_is_single: bool) {
    const TIMES: u64 = 60;
    const COUNT: usize = 700;
    let (me, size) = (world.rank(), world.size() as u64);
    let window = Window::<u64>::allocate(&world, COUNT).await.unwrap();
    let window = window.into_passive().await.unwrap();
    let lock = window.lock_shared(0).await.unwrap();
    if first_is_single {
        assert!(lock.fetch_add(0, 0, 0).await.unwrap() <= TIMES * size * 5);
    }
    world.barrier().await.unwrap();
    for nth in 0..TIMES {
        lock.accumulate(0, 0, vec![1; COUNT], Sum).await.unwrap();
        let single = (usize::try_from(nth).unwrap() * 11 + me) % (COUNT - 1);
        lock.fetch_add(0, single, 1).await.unwrap();
        lock.accumulate(0, single, [1, 2], Sum).detach();
        let old = lock
            .get_accumulate(0, 1, vec![1; COUNT - 1], Sum)
            .await
            .unwrap();
        lock.flush(0).await.unwrap();
        assert!(old.iter().all(|&old| old <= TIMES * size * 5), "{old:?}");
        let last = lock
            .compare_exchange(0, COUNT - 1, u64::MAX, 0)
            .await
            .unwrap();
        assert!(
            last > 2 * nth,
            "{last}: this rank has added {} itself",
            2 * nth + 2
        );
        if me == 0 {
            assert!(window.shared().get(1) > 2 * nth);
        }
    }
    lock.flush(0).await.unwrap();
    lock.unlock().await;
    world.barrier().await.unwrap();
    if me == 0 {
        let sum: u64 = (0..COUNT).map(|at| window.shared().get(at)).sum();
        assert_eq!(sum, TIMES * size * (2 * COUNT as u64 + 3));
    }
    window.free().await.unwrap();
}

#[test]
fn updates_of_many_numbers_and_of_single_ones_lose_none_of_each_other() {
    everywhere(3, |world| {
        Box::pin(update_many_and_single_numbers(world, false))
    });
}

#[test]
fn updates_of_many_numbers_lose_none_in_a_window_that_was_first_updated_singly() {
    everywhere(3, |world| {
        Box::pin(update_many_and_single_numbers(world, true))
    });
}

#[test]
fn every_combination_does_what_its_name_says_and_tells_what_was_there() {
    fn combinations(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<i64>::allocate(&world, 2).await.unwrap();
            let epoch = window.fence().await.unwrap();
            if world.rank() == 0 {
                let steps = [
                    (Combine::from(Replace), 12, 12),
                    (Combine::from(Sum), -2, 10),
                    (Combine::from(Product), 3, 30),
                    (Combine::from(Min), 7, 7),
                    (Combine::from(Max), 13, 13),
                    (Combine::from(BitAnd), 6, 4),
                    (Combine::from(BitOr), 3, 7),
                    (Combine::from(BitXor), 2, 5),
                    (Combine::from(NoOp), 99, 5),
                ];
                let mut before = 0;
                for (combine, operand, after) in steps {
                    let old = epoch
                        .get_accumulate(1, 1, [operand], combine)
                        .await
                        .unwrap();
                    assert_eq!(old, [before], "{combine:?}");
                    before = after;
                }
                assert_eq!(epoch.compare_exchange(1, 1, 4, 8).await.unwrap(), 5);
                assert_eq!(epoch.compare_exchange(1, 1, 5, 8).await.unwrap(), 5);
                assert_eq!(epoch.fetch_op(1, 1, 0, NoOp).await.unwrap(), 8);
                assert!(epoch.fetch_add(1, 2, 1).await.is_err());
                let room = Vec::with_capacity(1);
                let error = epoch.get_accumulate(1, 1, room, Replace).await;
                let text = error.unwrap_err().error.to_string();
                assert!(text.contains("0 elements, and room for 1"), "{text}");
            }
            assert_eq!(
                epoch.end().await.unwrap(),
                [0, if world.rank() == 1 { 8 } else { 0 }]
            );
        })
    }
    everywhere(2, combinations);
}

#[test]
fn numbers_of_8_and_16_bits_are_updated_without_touching_their_neighbors() {
    const TIMES: usize = 50; // three ranks do not overflow a byte
    fn all(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            let small = i16::try_from(me).unwrap();
            let mark = 200 + u8::try_from(me).unwrap();
            let mut bytes = Window::<u8>::allocate(&world, size + 1).await.unwrap();
            let mut halves = Window::<i16>::allocate(&world, size + 1).await.unwrap();
            let of_bytes = bytes.fence().await.unwrap();
            let of_halves = halves.fence().await.unwrap();
            for _ in 0..TIMES {
                // Each rank has an element of its own, and all share the last one.
                of_bytes.accumulate(0, me, [1], Sum).detach();
                of_bytes.fetch_add(0, size, 1).await.unwrap();
                of_halves.fetch_op(0, me, -3, Sum).await.unwrap();
                of_halves.accumulate(0, size, [small], Max).detach();
            }
            let seen = of_bytes.compare_exchange(1, 0, 0, mark).await.unwrap();
            assert!(seen == 0 || seen >= 200, "{seen}");
            let flags = of_bytes
                .get_accumulate(1, 1, [1 << me], BitOr)
                .await
                .unwrap();
            assert_eq!(flags[0] & 1 << me, 0);
            let of_bytes = of_bytes.end().await.unwrap();
            let of_halves = of_halves.end().await.unwrap();
            if me == 0 {
                assert_eq!(of_bytes, [50, 50, 50, 150]);
                assert_eq!(of_halves, [-150, -150, -150, 2]);
            } else if me == 1 {
                assert!(of_bytes[0] >= 200);
                assert_eq!(of_bytes[1], (1 << size) - 1);
            }
        })
    }
    everywhere(3, all);
}

#[test]
fn integers_of_128_bits_are_updated_whole() {
    const TIMES: u64 = 50;
    /// Changes both halves of the sum.
    const STEP: u128 = (1 << 64) | (u64::MAX as u128 / 100);
    fn all(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size() as u64);
            let mut sums = Window::<u128>::allocate(&world, 2).await.unwrap();
            let mut least = Window::<i128>::allocate(&world, 300).await.unwrap();
            let summing = sums.fence().await.unwrap();
            let searching = least.fence().await.unwrap();
            let mut seen = Vec::new();
            for _ in 0..TIMES {
                summing.accumulate(0, 0, [STEP, 1], Sum).detach();
                let old = summing.fetch_op(1, 1, STEP, Sum).await.unwrap();
                assert_eq!(old % STEP, 0, "one half of a sum");
                seen.push(old);
            }
            assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
            let operands: Vec<i128> = (0..300).map(|at| -(at * me as i128) << 70).collect();
            let old = searching.get_accumulate(0, 0, operands, Min).await.unwrap();
            assert!(old[0] == 0 && old.iter().all(|old| *old <= 0));
            let first = summing.compare_exchange(2, 0, 0, me as u128 + 1).await;
            let first = first.unwrap();
            assert!(first <= 3, "{first}");
            let mine = summing.end().await.unwrap();
            let lowest = searching.end().await.unwrap();
            let total = u128::from(TIMES * size);
            match me {
                0 => {
                    assert_eq!(mine, [total * STEP, total]);
                    let last = i128::from(size) - 1;
                    assert!(
                        (0..300)
                            .zip(&*lowest)
                            .all(|(at, &low)| low == -(at * last) << 70)
                    );
                }
                1 => assert_eq!(mine, [0, total * STEP]),
                _ => assert!((1..=3).contains(&mine[0])),
            }
        })
    }
    everywhere(3, all);
}

#[test]
fn values_find_their_locations_whether_they_have_64_bits_or_fewer() {
    fn all(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank() as u64, world.size() as u64);
            let mut doubles = Window::<Located<f64>>::allocate(&world, 1).await.unwrap();
            let mut floats = Window::<Located<f32>>::allocate(&world, 200).await.unwrap();
            let of_doubles = doubles.fence().await.unwrap();
            let of_floats = floats.fence().await.unwrap();
            let worst = [Located::new(f64::INFINITY, u64::MAX)];
            of_doubles
                .accumulate(world.rank(), 0, worst, Replace)
                .await
                .unwrap();
            let of_doubles = of_doubles.fence().await.unwrap();
            for step in 0..20_u32 {
                let value = Located::new((me + 1) as f64 + f64::from(20 - step), me);
                of_doubles.accumulate(0, 0, [value], MinLoc).detach();
                // 200 of them take more than one message.
                let values = vec![Located::new((me + u64::from(step)) as f32, me); 200];
                of_floats.accumulate(0, 0, values, MaxLoc).await.unwrap();
            }
            let error = of_doubles.accumulate(0, 0, worst, Sum).await.unwrap_err();
            assert!(error.to_string().contains("`MinLoc`, `MaxLoc`"), "{error}");
            let old = of_floats
                .fetch_op(0, 7, Located::new(0.0, 9), NoOp)
                .await
                .unwrap();
            assert!(old.value() >= 19.0 && old.at() < size, "{old:?}");
            let mine = of_doubles.end().await.unwrap();
            let greatest = of_floats.end().await.unwrap();
            if me == 0 {
                assert_eq!(mine, [Located::new(2.0, 0)]);
                let last = Located::new((size - 1 + 19) as f32, size - 1);
                assert_eq!(greatest, vec![last; 200]);
            }
        })
    }
    everywhere(3, all);
}

#[test]
fn faces_of_arrays_are_combined_where_their_layout_says() {
    fn columns(world: Comm) -> Rank {
        Box::pin(async move {
            let size = u32::try_from(world.size()).unwrap();
            let column = Layout {
                offset: 1,
                block: 1,
                stride: 4,
                count: 3,
            };
            let mut window = Window::<u32>::allocate(&world, 12).await.unwrap();
            let mut wide = Window::<u128>::allocate(&world, 12).await.unwrap();
            let epoch = window.fence().await.unwrap();
            let of_wide = wide.fence().await.unwrap();
            epoch
                .accumulate_strided(0, column, [1, 2, 3], Sum)
                .await
                .unwrap();
            of_wide
                .accumulate_strided(0, column, vec![1, 2, 3], Sum)
                .await
                .unwrap();
            let old = epoch
                .get_accumulate_strided(0, column, [9; 3], NoOp)
                .await
                .unwrap();
            assert!((1..=size).contains(&old[0]) && old[2] >= 3, "{old:?}");
            for count in [2, 4] {
                let layout = Layout { count, ..column };
                let failed = epoch.accumulate_strided(0, layout, [1; 3], Sum).await;
                let text = failed.unwrap_err().error.to_string();
                assert!(
                    text.contains(&format!("`layout` has {count} elements")),
                    "{text}"
                );
            }
            let failed = epoch.accumulate_strided(0, column, [1; 3], MinLoc).await;
            let text = failed.unwrap_err().error.to_string();
            assert!(text.contains("`Located` only"), "{text}");
            let sums = epoch.end().await.unwrap();
            let wide_sums = of_wide.end().await.unwrap();
            if world.rank() == 0 {
                let wanted = [0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0].map(|elem| elem * size);
                assert_eq!(sums, wanted);
                assert_eq!(wide_sums, wanted.map(u128::from));
            }
        })
    }
    everywhere(3, columns);
}

#[test]
fn bits_of_floating_point_numbers_are_refused() {
    fn refused(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<f32>::allocate(&world, 1).await.unwrap();
            let epoch = window.fence().await.unwrap();
            let error = epoch.accumulate(0, 0, [1.0], BitAnd).await.unwrap_err();
            assert!(error.to_string().contains("integers only"), "{error}");
            epoch.end().await.unwrap();
        })
    }
    everywhere(1, refused);
}

#[test]
fn a_wrong_layout_is_refused_by_its_name() {
    fn refused(world: Comm) -> Rank {
        Box::pin(async move {
            let other = 1 - world.rank();
            let mut window = Window::<u16>::allocate(&world, 12).await.unwrap();
            let epoch = window.fence().await.unwrap();
            let column = Layout {
                offset: 1,
                block: 1,
                stride: 4,
                count: 3,
            };
            // From the first access on, this rank knows how many elements the other one has.
            epoch.put_strided(other, column, [0; 3]).await.unwrap();
            let with = |offset, block, stride| Layout {
                offset,
                block,
                stride,
                count: 3,
            };
            let counts = [0, 2, 1 << 40, usize::MAX].map(|count| {
                let words = format!("`layout` has {count} elements and `buf` has 3");
                (Layout { count, ..column }, 3, words)
            });
            let outside = format!("leaves the 12 elements of rank {other}");
            let others = [
                (with(4, 1, 4), 3, outside.clone()),
                (with(1, 1, usize::MAX), 3, outside),
                (with(1, 2, 1), 6, "in which blocks overlap".to_owned()),
            ];
            for (layout, len, words) in counts.into_iter().chain(others) {
                let put = epoch.put_strided(other, layout, vec![1; len]).await;
                let got = epoch.get_strided(other, layout, vec![0; len]).await;
                for failed in [put, got] {
                    let error = failed.unwrap_err().error;
                    let text = error.to_string();
                    assert!(text.contains(&words), "{text}");
                    assert_eq!(error.peer, Some(other));
                }
            }
            assert_eq!(epoch.end().await.unwrap(), [0; 12]);
        })
    }
    everywhere(2, refused);
}

#[test]
fn blocks_go_where_the_layout_says() {
    fn columns(world: Comm) -> Rank {
        Box::pin(async move {
            let other = 1 - world.rank();
            let mut window = Window::<u16>::allocate(&world, 12).await.unwrap();
            let epoch = window.fence().await.unwrap();
            let column = Layout {
                offset: 1,
                block: 1,
                stride: 4,
                count: 3,
            };
            epoch
                .put_strided(other, column, vec![7, 8, 9])
                .await
                .unwrap();
            epoch
                .put_indexed(other, &[10..12, 0..1], [4, 5, 6])
                .await
                .unwrap();
            let epoch = epoch.fence().await.unwrap();
            let got = epoch.get_strided(other, column, [0; 3]).await.unwrap();
            assert_eq!(got, [7, 8, 9]);
            let got = epoch
                .get_indexed(other, &[0..2, 9..12], vec![0; 5])
                .await
                .unwrap();
            assert_eq!(got, [6, 7, 9, 4, 5]);
            #[expect(clippy::single_range_in_vec_init, reason = "one block")]
            for blocks in [vec![0..2], vec![11..14], vec![]] {
                assert!(
                    epoch.put_indexed(other, &blocks, [1; 3]).await.is_err(),
                    "{blocks:?}"
                );
            }
            assert_eq!(
                epoch.end().await.unwrap(),
                [6, 7, 0, 0, 0, 8, 0, 0, 0, 9, 4, 5]
            );
        })
    }
    everywhere(2, columns);
}
