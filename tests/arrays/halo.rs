//! The exchange of ghosts.

use std::{
    panic::{self, AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use ripstop::{Cart, Comm, Error, ErrorKind, Halo, Result, Wire};

use crate::panics;

/// What is in a ghost that was not received.
const NO_VALUE: u64 = u64::MAX;

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
    let here = file!();
    let at = line!() + 1;
    let (text, line) = panics(here, || drop(halo.start(&[0; 3]).finish(&mut [0; 4])));
    assert!(text.contains("finish: a `field`"), "{text}");
    assert_eq!(line, at);
    let two = &mut [[0; 3]; 2];
    let at = line!() + 1;
    let (text, line) = panics(here, || drop(halo.start(&[0; 3]).finish_all(two)));
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
    let says = |made: Result<Halo<f64>>| match made.expect_err("it is refused").into_kind() {
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
