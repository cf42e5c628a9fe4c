//! Layouts of arrays, messages of them, and the exchange of ghosts, each compared with a plain loop over indices.
#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "seeds help to reproduce a failure; ranks and counts in tests are small"
)]

#[path = "support/content.rs"]
mod content;

use std::{
    cell::RefCell,
    ops::Range,
    panic::{self, AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Once,
    task::{Context, Waker},
    time::Duration,
};

use ripstop::{
    Cart, Comm, Error, ErrorKind, Halo, Result, Window, Wire,
    buffer::{BufExt, Layout, NestedLayout},
};

use content::{Random, content, seed};

/// What is in a ghost that was not received.
const NO_VALUE: u64 = u64::MAX;

#[test]
fn subarrays_are_packed_and_unpacked_like_a_loop_over_indices() {
    let seed = seed("subarrays_are_packed_and_unpacked_like_a_loop_over_indices");
    let mut random = Random::new(seed);
    for case in 0..2000 {
        let dims = random.below(5);
        let shape: Vec<_> = (0..dims).map(|_| random.below(7)).collect();
        let ranges: Vec<_> = shape
            .iter()
            .map(|&len| {
                let start = random.below(len + 1);
                start..start + random.below(len - start + 1)
            })
            .collect();
        let layout = Layout::subarray(&shape, &ranges);
        compare(
            &layout,
            &indices(&shape, &ranges),
            shape.iter().product(),
            &mut random,
            &format!("case {case}, {ranges:?} of {shape:?}"),
        );
    }
}

#[test]
fn repeated_layouts_are_packed_like_a_loop_or_refused_where_elements_would_come_twice() {
    let seed = seed("repeated_layouts_are_packed_like_a_loop");
    let mut random = Random::new(seed);
    let (mut packed, mut refused) = (0, 0);
    for case in 0..2000 {
        let [offset, block, count] = [4, 4, 4].map(|n| random.below(n));
        let stride = block + random.below(4);
        let first = Layout {
            offset,
            block,
            stride,
            count,
        };
        let mut layout = NestedLayout::from(first);
        let mut at: Vec<_> = (0..count)
            .flat_map(|nth| (0..block).map(move |elem| offset + nth * stride + elem))
            .collect();
        for _ in 0..random.below(3) {
            let (stride, count) = (random.below(20), random.below(4));
            layout = layout.repeated(stride, count);
            at = (0..count)
                .flat_map(|nth| at.iter().map(move |at| at + nth * stride))
                .collect();
        }
        let len = at.iter().max().map_or(0, |last| last + 1);
        let mut sorted = at.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let array = vec![0_u8; len];
        let accepted = catch_unwind(|| layout.pack(&array, &mut Vec::new())).is_ok();
        if sorted.len() < at.len() {
            assert!(!accepted, "{layout:?} has elements twice");
        }
        if accepted {
            packed += 1;
            compare(&layout, &at, len, &mut random, &format!("case {case}"));
        } else {
            refused += 1;
        }
    }
    assert!(
        packed > 500 && refused > 50,
        "{packed} packed, {refused} refused"
    );
}

/// Compares all ways of packing and unpacking with the indices `at` of an array of `len` elements.
fn compare(layout: &NestedLayout, at: &[usize], len: usize, random: &mut Random, case: &str) {
    let array = content(random.next(), len);
    let expected: Vec<_> = at.iter().map(|&at| array[at]).collect();
    assert_eq!(layout.len(), at.len(), "{case}: {layout:?}");
    assert_eq!(layout.is_empty(), at.is_empty(), "{case}: {layout:?}");
    let ranges = layout.ranges().into_iter().flatten();
    assert!(ranges.eq(at.iter().copied()), "{case}: {layout:?}");
    let mut packed = vec![7];
    layout.pack(&array, &mut packed);
    assert_eq!(packed[1..], expected, "{case}: {layout:?}");
    let mut slice = vec![0; at.len()];
    layout.pack_into(&array, &mut slice);
    assert_eq!(slice, expected, "{case}: {layout:?}");

    let short = random.below(at.len() + 1);
    let mut unpacked = vec![0; len];
    layout.unpack(&expected[..short], &mut unpacked);
    let mut by_hand = vec![0; len];
    for &at in &at[..short] {
        by_hand[at] = array[at];
    }
    assert_eq!(unpacked, by_hand, "{case}: {short} elements of {layout:?}");
    let inner = array.clone().strided(layout).into_inner();
    assert_eq!(inner, array, "{case}: {layout:?}");

    if let Some(end) = at.iter().max() {
        let shorter = &array[..*end];
        let refused = catch_unwind(|| layout.pack(shorter, &mut Vec::new()));
        assert!(refused.is_err(), "{case}: {layout:?} of {end} elements");
    }
}

/// Returns the indices of the elements of a part of a row-major array, in order.
fn indices(shape: &[usize], ranges: &[Range<usize>]) -> Vec<usize> {
    shape
        .iter()
        .zip(ranges)
        .fold(vec![0], |outer, (&len, range)| {
            outer
                .iter()
                .flat_map(|at| range.clone().map(move |inner| at * len + inner))
                .collect()
        })
}

#[test]
fn contiguous_parts_are_one_block() {
    let plane = Layout::subarray(&[4, 5, 6], &[1..3, 0..5, 0..6]);
    let flat = Layout {
        offset: 30,
        block: 60,
        stride: 60,
        count: 1,
    };
    assert_eq!(plane, flat.into());
    assert_eq!(Layout::subarray(&[4, 5, 6], &[0..4, 2..3, 0..6]), {
        Layout {
            offset: 12,
            block: 6,
            stride: 30,
            count: 4,
        }
        .into()
    });
    // A column through all planes has one stride.
    assert_eq!(Layout::subarray(&[4, 5, 6], &[0..4, 0..5, 3..4]), {
        Layout {
            offset: 3,
            block: 1,
            stride: 6,
            count: 20,
        }
        .into()
    });
}

#[test]
fn a_layout_that_does_not_fit_is_refused_by_name() {
    let says = |call: &dyn Fn()| {
        let refused = catch_unwind(AssertUnwindSafe(call)).expect_err("it panics");
        refused
            .downcast::<String>()
            .map(|text| *text)
            .unwrap_or_default()
    };
    let text = says(&|| drop(Layout::subarray(&[3, 4], &[0..3, 2..5])));
    assert!(
        text.contains("`ranges` has 2..5 in dimension 1") && text.contains("0..4"),
        "{text}"
    );
    let text = says(&|| drop(Layout::subarray(&[3, 4], std::slice::from_ref(&(0..3)))));
    assert!(text.contains("`ranges` needs one range"), "{text}");
    let text = says(&|| drop(Layout::subarray(&[usize::MAX, 2], &[0..1, 0..1])));
    assert!(text.contains("`shape`"), "{text}");
    let face = Layout::subarray(&[3, 4], &[0..3, 3..4]);
    let text = says(&|| face.pack(&[0; 11], &mut Vec::new()));
    assert!(text.contains("leaves `from` of 11 elements"), "{text}");
    let text = says(&|| face.unpack(&[0; 3], &mut [0; 11]));
    assert!(text.contains("leaves `into` of 11 elements"), "{text}");
    let text = says(&|| face.pack_into(&[0; 12], &mut [0; 4]));
    assert!(text.contains("`packed` must be as long"), "{text}");
    let endless = face.repeated(usize::MAX, usize::MAX);
    assert_eq!((endless.len(), endless.end()), (usize::MAX, usize::MAX));
    assert!(says(&|| drop(endless.ranges())).contains("leaves every array"));
    assert!(!says(&|| endless.pack(&[0; 12], &mut Vec::new())).is_empty());
}

#[ripstop::test(ranks = 2)]
async fn parts_of_one_array_are_in_flight_while_it_is_used(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    // Of 8 and of 64 KiB: the second goes by rendezvous.
    for n in [8, 96] {
        let shape = [n, n, n];
        let mut array: Vec<_> = (0..n * n * n).map(|at| 2 * at + me).collect();
        let part = |x: usize| Layout::subarray(&shape, &[0..n, 1..n - 1, x..x + 1]);
        let inbox = [0, n - 1].map(|x| world.recv_packed(other, x as u32, part(x)));
        let sent = [1, n - 2].map(|x| {
            let tag = if x == 1 { n - 1 } else { 0 };
            world.send_packed(other, tag as u32, &array, part(x))
        });
        array[n + 1] = 0;
        for column in inbox {
            let status = column.await?.unpack_into(&mut array);
            assert_eq!((status.source, status.len), (other, n * (n - 2)));
        }
        for column in sent {
            assert_eq!(column.await?.len(), n * (n - 2));
        }
        for (at, &got) in array.iter().enumerate() {
            let (x, y) = (at % n, at / n % n);
            let inside = (1..n - 1).contains(&y);
            let expected = match x {
                _ if at == n + 1 => 0,
                0 if inside => 2 * (at + n - 2) + other,
                _ if x == n - 1 && inside => 2 * (at - (n - 2)) + other,
                _ => 2 * at + me,
            };
            assert_eq!(got, expected, "element {at} of {n}³");
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_message_of_another_length_is_too_long_or_fills_the_first_elements(
    world: Comm,
) -> Result<()> {
    let other = 1 - world.rank();
    let column = |rows| Layout {
        offset: 0,
        block: 1,
        stride: 2,
        count: rows,
    };
    let array: Vec<u32> = (10..18).collect();
    world.send_packed(other, 1, &array, column(4)).await?;
    world.send_packed(other, 2, &array, column(2)).await?;
    world.send_packed(other, 3, &array, column(0)).await?;

    let failed = world
        .recv_packed_in::<u32>(other, 1, column(3), vec![9; 100])
        .await;
    let failed = failed.expect_err("it is too long");
    let text = failed.error.to_string();
    assert!(
        matches!(failed.error.kind, ErrorKind::Truncated { sent: 4, room: 3 }),
        "{text}"
    );
    assert!(text.contains("tests/arrays.rs"), "{text}");
    let kept = world
        .recv_packed_in(other, 1, column(4), failed.buf)
        .await?;
    assert_eq!(kept.packed(), [10, 12, 14, 16]);

    let mut into = vec![0; 8];
    let short = world
        .recv_packed_in(other, 2, column(4), kept.into_scratch())
        .await?;
    assert_eq!(
        (short.status().len, short.unpack_into(&mut into).len),
        (2, 2)
    );
    assert_eq!(into, [10, 0, 12, 0, 0, 0, 0, 0]);
    let refused = catch_unwind(AssertUnwindSafe(|| short.unpack_into(&mut into[..6])));
    let text = refused
        .expect_err("it leaves the array")
        .downcast::<String>();
    let text = text.map(|text| *text).unwrap_or_default();
    assert!(text.contains("leaves `array` of 6 elements"), "{text}");

    let empty = world
        .recv_packed_in(other, 3, column(0), vec![1; 5])
        .await?;
    assert_eq!(empty.unpack_into(&mut into).len, 0);
    let wrong = catch_unwind(AssertUnwindSafe(|| {
        world.send_packed(other, 4, &array, column(5)).detach();
    }));
    assert!(wrong.is_err(), "nothing is sent");
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn packed_messages_of_no_rank_leave_the_array_as_it_is(world: Comm) -> Result<()> {
    let column = Layout {
        offset: 0,
        block: 1,
        stride: 2,
        count: 3,
    };
    let mut array = [1_u32, 2, 3, 4, 5];
    let sent = world.send_packed(None, 7, &array, column).await?;
    assert_eq!(sent, [1, 3, 5]);
    for scratch in [Vec::new(), vec![9; 3], vec![9; 8]] {
        let message = world.recv_packed_in(None, 7, column, scratch).await?;
        assert!(message.packed().is_empty(), "{message:?}");
        assert_eq!(message.unpack_into(&mut array).len, 0);
        assert_eq!(array, [1, 2, 3, 4, 5]);
    }
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn blocks_that_overlap_are_refused_before_a_message_is_taken(world: Comm) -> Result<()> {
    let overlapping = Layout {
        offset: 0,
        block: 2,
        stride: 1,
        count: 2,
    };
    world.send(0, 7, [1_u8, 2]).await?;
    let at = line!() + 1;
    let (text, line) = panics(|| drop(world.recv_packed::<u8>(0, 7, overlapping)));
    assert!(
        text.starts_with("recv_packed: ") && text.contains("overlap"),
        "{text}"
    );
    assert_eq!(line, at);
    assert_eq!(world.recv::<u8>(0, 7).await?.0, [1, 2]);
    Ok(())
}

/// Returns the text of the panic in `call`, and the line of this file that it names.
fn panics(call: impl FnOnce()) -> (String, u32) {
    thread_local! {
        static PLACE: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PLACE.set(info.location().map(|at| (at.file().to_owned(), at.line())));
            before(info);
        }));
    });
    let panicked = catch_unwind(AssertUnwindSafe(call)).expect_err("it panics");
    let text = panicked.downcast::<String>().map(|text| *text);
    let (file, line) = PLACE.take().expect("the place of the panic");
    assert_eq!(file, file!());
    (text.unwrap_or_default(), line)
}

#[ripstop::test(ranks = 2)]
async fn a_face_is_put_to_and_got_from_a_window_with_a_layout_on_both_sides(
    world: Comm,
) -> Result<()> {
    let (me, other) = (world.rank() as u32, 1 - world.rank());
    let shape = [4, 4, 5];
    let face = |y: usize| Layout::subarray(&shape, &[1..3, y..y + 1, 1..4]);
    let array: Vec<u32> = (0..80).map(|at| 100 * me + at).collect();
    let mut window = Window::<u32>::allocate(&world, 80).await?;
    let epoch = window.fence().await?;
    let put = epoch.put_strided(other, face(0), array.strided(face(2)));
    let array = put.await?.into_inner();
    let epoch = epoch.fence().await?;
    let got = epoch.get_strided(other, face(0), vec![0; 80].strided(face(3)));
    let got = got.await?.into_inner();
    let refused = epoch.put_strided(other, face(0), [0; 5]).await;
    assert!(refused.is_err());
    let endless = Layout {
        offset: 0,
        block: 1,
        stride: usize::MAX,
        count: 3,
    };
    assert!(epoch.put_strided(other, endless, [0; 3]).await.is_err());
    let mine = epoch.end().await?;
    let mut put_here = vec![0; 80];
    let mut got_here = vec![0; 80];
    for (z, x) in [1, 2].into_iter().flat_map(|z| (1..4).map(move |x| (z, x))) {
        let at = |y: usize| (z * 4 + y) * 5 + x;
        put_here[at(0)] = 100 * (1 - me) + at(2) as u32;
        got_here[at(3)] = array[at(2)];
    }
    assert_eq!(mine, put_here);
    assert_eq!(got, got_here);
    window.free().await
}

#[ripstop::test(ranks = 1)]
async fn one_rank_gets_the_ghosts_of_the_whole_array(world: Comm) -> Result<()> {
    on_every_grid(&world).await
}

#[ripstop::test(ranks = 2)]
async fn two_ranks_get_the_ghosts_of_the_whole_array(world: Comm) -> Result<()> {
    on_every_grid(&world).await
}

#[ripstop::test(ranks = 4)]
async fn four_ranks_get_the_ghosts_of_the_whole_array(world: Comm) -> Result<()> {
    on_every_grid(&world).await
}

#[ripstop::test(ranks = 8)]
async fn eight_ranks_get_the_ghosts_of_the_whole_array(world: Comm) -> Result<()> {
    on_every_grid(&world).await
}

#[ripstop::test(ranks = 4, process)]
async fn ranks_as_processes_get_the_ghosts_of_the_whole_array(world: Comm) -> Result<()> {
    let cart = world.cart(&[2, 2], &[true, false]).await?;
    for corners in [false, true] {
        ghosts_are_those_of_the_whole_array(&cart, &[true, false], 2, corners).await?;
    }
    Ok(())
}

/// Exchanges ghosts on every grid of one to three dimensions, whatever dimensions wrap around.
async fn on_every_grid(world: &Comm) -> Result<()> {
    for dims in 1..=3 {
        for grid in grids(world.size(), dims) {
            for wraps in 0..1 << dims {
                let periodic: Vec<_> = (0..dims).map(|dim| wraps >> dim & 1 == 1).collect();
                let cart = world.cart(&grid, &periodic).await?;
                for (width, corners) in [(1, false), (2, true)] {
                    ghosts_are_those_of_the_whole_array(&cart, &periodic, width, corners).await?;
                }
            }
        }
    }
    Ok(())
}

/// Returns all grids of `ranks` ranks.
fn grids(ranks: usize, dims: usize) -> Vec<Vec<usize>> {
    if dims == 1 {
        return vec![vec![ranks]];
    }
    let firsts = (1..=ranks).filter(|first| ranks.is_multiple_of(*first));
    let with_first = |first| {
        let rests = grids(ranks / first, dims - 1).into_iter();
        rests.map(move |rest| [vec![first], rest].concat())
    };
    firsts.flat_map(with_first).collect()
}

/// Splits an array over the grid, exchanges ghosts twice, and compares each with the element of the whole array.
async fn ghosts_are_those_of_the_whole_array(
    cart: &Cart,
    periodic: &[bool],
    width: usize,
    corners: bool,
) -> Result<()> {
    // The first ranks of dimension 0 have three layers, and the last one two.
    let whole: Vec<_> = (0..)
        .zip(cart.dims())
        .map(|(dim, parts)| 3 * parts - usize::from(dim == 0))
        .collect();
    let first: Vec<_> = cart.coords().iter().map(|at| 3 * at).collect();
    let own: Vec<_> = (0..whole.len())
        .map(|dim| (whole[dim] - first[dim]).min(3))
        .collect();
    let shape: Vec<_> = own.iter().map(|own| own + 2 * width).collect();
    let mut halo = Halo::new(cart, &shape, width).await?;
    if corners {
        halo = Halo::with_corners(cart, &shape, width).await?;
    }
    for step in 1..=2 {
        let value = |global: &[usize]| {
            let at = global
                .iter()
                .zip(&whole)
                .fold(0, |at, (index, len)| at * len + index);
            step * 1_000_000 + at as u64
        };
        let expected = |local: &[usize]| {
            let outside =
                (0..own.len()).filter(|&dim| !(width..width + own[dim]).contains(&local[dim]));
            if outside.count() > 1 && !corners {
                return NO_VALUE;
            }
            let global = (0..own.len()).map(|dim| {
                let at = (first[dim] + local[dim]) as isize - width as isize;
                let len = whole[dim] as isize;
                let at = if periodic[dim] {
                    at.rem_euclid(len)
                } else {
                    at
                };
                (0..len).contains(&at).then_some(at as usize)
            });
            global
                .collect::<Option<Vec<_>>>()
                .map_or(NO_VALUE, |global| value(&global))
        };
        let locals: Vec<Vec<usize>> = (0..shape.iter().product())
            .map(|at| local_of(at, &shape))
            .collect();
        let is_own = |local: &Vec<usize>| {
            (0..own.len()).all(|dim| (width..width + own[dim]).contains(&local[dim]))
        };
        let start = locals.iter().map(|local| {
            if is_own(local) {
                expected(local)
            } else {
                NO_VALUE
            }
        });
        let mut field: Vec<u64> = start.collect();
        let in_flight = halo.start(&field);
        in_flight.finish(&mut field).await?;
        for (local, &got) in locals.iter().zip(&field) {
            let (rank, grid) = (cart.rank(), cart.dims());
            assert_eq!(
                got,
                expected(local),
                "{local:?} of rank {rank}, grid {grid:?}, periodic {periodic:?}, width {width}, corners {corners}"
            );
        }
    }
    Ok(())
}

fn local_of(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut local: Vec<_> = shape
        .iter()
        .rev()
        .map(|len| {
            let index = at % len;
            at /= len;
            index
        })
        .collect();
    local.reverse();
    local
}

#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C)]
struct Cell {
    speed: [f32; 3],
    id: u32,
}

#[ripstop::test(ranks = 2)]
async fn fields_of_structs_travel_in_one_message_and_values_of_a_cell_together(
    world: Comm,
) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let cart = world.cart(&[2], &[true]).await?;
    let cell = |rank: usize, at: usize| Cell {
        speed: [rank as f32, at as f32, 0.5],
        id: at as u32,
    };
    let mut halo = Halo::new(&cart, &[6, 2], 1).await?;
    let mut fields = [0, 100].map(|from| (0..12).map(|at| cell(me, from + at)).collect::<Vec<_>>());
    for _ in 0..3 {
        let in_flight = halo.start_all(&fields);
        in_flight.finish_all(&mut fields).await?;
        for (field, from) in fields.iter().zip([0, 100]) {
            let ghosts = [field[0], field[1], field[10], field[11]];
            let theirs = [8, 9, 2, 3].map(|at| cell(other, from + at));
            assert_eq!(ghosts, theirs);
        }
    }
    let mut halo = Halo::new(&cart, &[4], 1).await?;
    let mut single = [me as f32; 4];
    halo.start(&single).finish(&mut single).await?;
    assert_eq!(single[0].to_bits(), (other as f32).to_bits());
    Ok(())
}

/// Faces of 128 KiB, to the other rank at both sides and to this rank itself.
#[ripstop::test(ranks = 2)]
async fn long_faces_to_one_rank_at_both_sides_and_to_itself(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let cart = world.cart(&[2, 1], &[true, true]).await?;
    let (rows, columns) = (4, 16_386);
    let mut halo = Halo::new(&cart, &[rows, columns], 1).await?;
    for step in 0..3 {
        let value = |rank: usize, row: usize, column: usize| {
            (((step * 2 + rank) * rows + row) * columns + column) as f64
        };
        let mut field: Vec<_> = (0..rows * columns)
            .map(|at| value(me, at / columns, at % columns))
            .collect();
        halo.start(&field).finish(&mut field).await?;
        for column in 1..columns - 1 {
            let got = [field[column], field[3 * columns + column]];
            let sent = [value(other, 2, column), value(other, 1, column)];
            assert_eq!(
                got.map(f64::to_bits),
                sent.map(f64::to_bits),
                "column {column}"
            );
        }
        for row in 1..rows - 1 {
            let got = [field[row * columns], field[(row + 1) * columns - 1]];
            let sent = [value(me, row, columns - 2), value(me, row, 1)];
            assert_eq!(got.map(f64::to_bits), sent.map(f64::to_bits), "row {row}");
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn an_exchange_that_is_not_finished_leaves_the_next_one_right(world: Comm) -> Result<()> {
    let (me, other) = (world.rank() as u64, 1 - world.rank());
    let cart = world.cart(&[2], &[false]).await?;
    let mut halo = Halo::new(&cart, &[3], 1).await?;
    let field = |step: u64| [NO_VALUE, 10 * step + me, NO_VALUE];
    drop(halo.start(&field(0)));
    if me == 0 {
        // The other rank has not started this exchange, so the first poll waits; then the future is dropped.
        let mut ghosts = field(1);
        let mut finish = Box::pin(halo.start(&field(1)).finish(&mut ghosts));
        let polled = finish
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        drop(finish);
        world.send(other, 1, [1_u8]).await?;
    } else {
        world.recv::<u8>(other, 1).await?;
        drop(halo.start(&field(1)));
    }
    let mut ghosts = field(2);
    halo.start(&field(2)).finish(&mut ghosts).await?;
    let (got, outside) = if me == 0 {
        (ghosts[2], ghosts[0])
    } else {
        (ghosts[0], ghosts[2])
    };
    assert_eq!((got, outside), (20 + other as u64, NO_VALUE));
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn an_exchange_that_timed_out_is_the_last_one(world: Comm) -> Result<()> {
    let me = world.rank() as u64;
    let cart = world.cart(&[2], &[false]).await?;
    let mut halo = Halo::new(&cart, &[3], 1).await?;
    let mut field = [NO_VALUE, 10 + me, NO_VALUE];
    if me == 0 {
        let at = line!() + 1;
        let in_flight = halo.start(&field);
        let mut in_flight = in_flight.timeout(Duration::from_millis(1));
        let timed_out = |failed: Result<()>| {
            let error = failed.expect_err("an exchange timed out");
            assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
            assert_eq!(error.at.map(panic::Location::line), Some(at), "{error}");
        };
        timed_out(in_flight.wait().await);
        timed_out(in_flight.wait().await);
        assert!(in_flight.is_done());
        timed_out(in_flight.finish(&mut field).await);
        world.send(1, 1, [0_u8]).await?;
        world.recv::<u8>(1, 1).await?; // behind the late message
        for _ in 0..3 {
            timed_out(halo.start(&field).finish(&mut field).await);
        }
        assert_eq!(field, [NO_VALUE, 10, NO_VALUE]);
    } else {
        world.recv::<u8>(0, 1).await?;
        halo.start(&field).finish(&mut field).await?;
        assert_eq!(field, [10, 11, NO_VALUE]);
        world.send(0, 1, [0_u8]).await?;
        // The other rank sends nothing more, which would be taken for what was due before.
        let error = halo.start(&field).finish(&mut field).await;
        let error = error.expect_err("the other rank gave up");
        assert!(
            matches!(error.kind, ErrorKind::PeerFinished { rank: 0 }),
            "{error}"
        );
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn an_exchange_that_timed_out_after_it_was_dropped_is_the_last_one(
    world: Comm,
) -> Result<()> {
    let me = world.rank();
    let cart = world.cart(&[2], &[false]).await?;
    let mut halo = Halo::new(&cart, &[3], 1).await?;
    let mut field = [9, me, 9];
    if me == 0 {
        let in_flight = halo.start(&field).timeout(Duration::from_millis(1));
        while !in_flight.is_done() {
            world.sleep(Duration::from_millis(1)).await;
        }
        drop(in_flight);
        world.send(1, 1, [0_u8]).await?;
        world.recv::<u8>(1, 1).await?; // behind the late message
        let error = halo.start(&field).finish(&mut field).await;
        let error = error.expect_err("an exchange timed out");
        assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
        assert_eq!(field, [9, 0, 9]);
    } else {
        world.recv::<u8>(0, 1).await?;
        halo.start(&field).finish(&mut field).await?;
        world.send(0, 1, [0_u8]).await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn exchanges_without_neighbors_let_other_tasks_run(world: Comm) -> Result<()> {
    let cart = world.cart(&[1], &[false]).await?;
    let mut halo = Halo::new(&cart, &[3], 1).await?;
    let mut exchanges = pin!(async {
        for _ in 0..10_000 {
            let in_flight = halo.start(&[0; 3]);
            in_flight.finish(&mut [0; 3]).await.expect("no neighbor");
        }
    });
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(exchanges.as_mut().poll(cx).is_pending());
    exchanges.await;
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn wrong_fields_panic_at_the_line_of_the_call(world: Comm) -> Result<()> {
    let cart = world.cart(&[1], &[true]).await?;
    let mut halo = Halo::new(&cart, &[3], 1).await?;
    let at = line!() + 1;
    let (text, line) = panics(|| drop(halo.start(&[0; 3]).finish(&mut [0; 4])));
    assert!(text.contains("finish: a `field`"), "{text}");
    assert_eq!(line, at);
    let at = line!() + 1;
    let (text, line) = panics(|| drop(halo.start(&[0; 3]).finish_all(&mut [[0; 3]; 2])));
    assert!(text.contains("finish: `fields` has"), "{text}");
    assert_eq!(line, at);
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn corners_of_many_dimensions_are_refused(world: Comm) -> Result<()> {
    let cart = world.cart(&[1; 20], &[true; 20]).await?;
    let error = Halo::<u8>::with_corners(&cart, &[3; 20], 1).await;
    let error = error.expect_err("3^20 - 1 neighbors").to_string();
    assert!(
        error.contains("`cart` has neighbors in 20 dimensions"),
        "{error}"
    );
    let cart = world.cart(&[1; 6], &[true; 6]).await?;
    let mut halo = Halo::with_corners(&cart, &[3; 6], 1).await?;
    let mut field = [0; 729];
    field[364] = 5;
    halo.start(&field).finish(&mut field).await?;
    assert_eq!(field, [5; 729]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn blocks_that_do_not_fit_are_refused_by_name(world: Comm) -> Result<()> {
    let says = |made: Result<Halo<f64>>| match made.expect_err("it is refused").kind {
        ErrorKind::InvalidArgument(sentence) => sentence,
        other => panic!("{other}"),
    };
    let cart = world.cart(&[2, 1], &[false, false]).await?;
    let text = says(Halo::new(&cart, &[5, 8], 2).await);
    assert!(
        text.contains("`width` 2 is more than the 1 own layers") && text.contains("dimension 0"),
        "{text}"
    );
    let text = says(Halo::new(&cart, &[8, 3], 2).await);
    assert!(
        text.contains("`shape` [8, 3] has no room in dimension 1"),
        "{text}"
    );
    let text = says(Halo::new(&cart, &[8], 2).await);
    assert!(text.contains("`shape` [8] has fewer dimensions"), "{text}");
    let text = says(Halo::new(&cart, &[usize::MAX, 8], 2).await);
    assert!(text.contains("`shape`"), "{text}");
    // Not split, and without neighbors: one own layer and no layer are enough.
    for columns in [5, 4] {
        let mut halo = Halo::new(&cart, &[8, columns], 2).await?;
        let mut field = vec![0.0; 8 * columns];
        halo.start(&field).finish(&mut field).await?;
        let short = catch_unwind(AssertUnwindSafe(|| drop(halo.start(&field[1..]))));
        assert!(short.is_err());
    }
    let mut without_ghosts = Halo::new(&cart, &[2, 2], 0).await?;
    without_ghosts
        .start(&[1.0; 4])
        .finish(&mut [1.0; 4])
        .await?;
    let text = says(Halo::new(&cart, &[5, 8], usize::MAX).await);
    assert!(text.contains("no room"), "{text}");
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn neighbors_that_disagree_get_errors(world: Comm) -> Result<()> {
    let me = world.rank();
    let cart = world.cart(&[2, 1], &[false, false]).await?;
    let columns = if me == 0 { 3 } else { 5 };
    let mut field = vec![0_u16; 3 * columns];
    let mut halo = Halo::new(&cart, &[3, columns], 1).await?;
    let at = line!() + 1;
    let in_flight = halo.start(&field);
    let expected = [
        "sent 3 elements for 1 ghosts",
        "sent 1 elements for 3 ghosts",
    ][me];
    let error = in_flight
        .finish(&mut field)
        .await
        .expect_err("other shapes");
    is_of_other_shapes(&error, expected, at);
    let error = halo.start(&field).finish(&mut field).await;
    is_of_other_shapes(&error.expect_err("still"), expected, at);
    let error = Halo::<u16>::new(&cart, &[8, 8], 1 + me)
        .await
        .expect_err("other widths");
    assert!(matches!(error.kind, ErrorKind::Mismatch { .. }), "{error}");
    Ok(())
}

fn is_of_other_shapes(error: &Error, expected: &str, line: u32) {
    let text = error.to_string();
    assert!(
        matches!(error.kind, ErrorKind::InvalidArgument(_)),
        "{text}"
    );
    assert!(text.contains(expected), "{text}");
    assert!(
        text.starts_with("halo with rank") && !text.contains("tag"),
        "{text}"
    );
    let at = error.at.expect("the line of `start`");
    assert_eq!((at.file(), at.line()), (file!(), line), "{text}");
}
