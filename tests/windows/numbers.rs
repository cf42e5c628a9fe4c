//! Updates of numbers, and blocks.

use ripstop::{
    BitAnd, BitOr, BitXor, Comm, Max, Min, Product, Sum, Window,
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
