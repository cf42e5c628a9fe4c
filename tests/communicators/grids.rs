//! Grids of ranks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ripstop::{Cart, Collectives, Comm, ErrorKind, Result, Sum};

use crate::ranks;

#[ripstop::test(ranks = 6)]
async fn neighbors_on_a_grid(world: Comm) -> Result<()> {
    let grid = world.cart(&[2, 3], &[false, true]).await?;
    let (row, column) = (world.rank() / 3, world.rank() % 3);
    assert_eq!(
        (grid.coords(), grid.dims()),
        (&[row, column][..], &[2, 3][..])
    );
    let at = |row, column| row * 3 + column;
    assert_eq!(
        grid.shift(1, 1),
        (
            Some(at(row, (column + 2) % 3)),
            Some(at(row, (column + 1) % 3))
        )
    );
    assert_eq!(
        grid.shift(1, -4),
        (
            Some(at(row, (column + 1) % 3)),
            Some(at(row, (column + 2) % 3))
        )
    );
    let edge = if row == 0 {
        (None, Some(at(1, column)))
    } else {
        (Some(at(0, column)), None)
    };
    assert_eq!(grid.shift(0, 1), edge);
    assert_eq!(grid.shift(0, 2), (None, None));
    assert_eq!(grid.shift(0, 0), (Some(world.rank()), Some(world.rank())));
    assert_eq!(grid.rank_at(&[1, -1]), Some(5));
    assert_eq!(grid.rank_at(&[2, 0]), None);
    assert_eq!(grid.periodic(), [false, true]);
    for rank in 0..6 {
        assert_eq!(grid.coords_of(rank), [rank / 3, rank % 3]);
    }
    // One element moves to the next rank along each dimension: around the second, and not beyond the edge of the first.
    let (from, to) = grid.shift(1, 1);
    let (_, ghost, _) = grid.sendrecv_into(to, from, 1, column as u64, 9).await?;
    assert_eq!(ghost, (column as u64 + 2) % 3);
    let (from, to) = grid.shift(0, 1);
    let (inbox, outbox) = (
        grid.recv_into(from, 2, [9_u64]),
        grid.send(to, 2, [row as u64]),
    );
    let (ghost, status) = inbox.await?;
    assert_eq!(
        (ghost, status.len),
        if row == 0 { ([9], 0) } else { ([0], 1) }
    );
    outbox.await?;
    Ok(())
}

#[test]
fn the_neighbors_of_a_grid_are_named_once_and_without_this_rank() {
    for (dims, periodic, expected) in [
        (vec![1], vec![true], [&[][..], &[], &[], &[]]),
        (vec![2], vec![true], [&[1], &[0], &[], &[]]),
        (vec![2], vec![false], [&[1], &[0], &[], &[]]),
        (vec![4], vec![false], [&[1], &[0, 2], &[1, 3], &[2]]),
        (
            vec![4, 1],
            vec![true, true],
            [&[3, 1], &[0, 2], &[1, 3], &[2, 0]],
        ),
        (
            vec![2, 2],
            vec![true, false],
            [&[2, 1], &[3, 0], &[0, 3], &[1, 2]],
        ),
    ] {
        let size = dims.iter().product::<usize>() as u32;
        ranks::run(size, &[], move |runtime| {
            let world = runtime.world();
            let grid = runtime.block_on(world.cart(&dims, &periodic)).unwrap();
            let neighbors = grid.neighbors();
            assert_eq!(neighbors, expected[world.rank()], "{dims:?} {periodic:?}");
        });
    }
}

#[test]
fn a_grid_has_subgrids_of_every_choice_of_dimensions() {
    for dims in [[1, 1], [2, 1], [2, 2]] {
        ranks::run((dims[0] * dims[1]) as u32, &[], move |runtime| {
            runtime.block_on(subgrids(&runtime.world(), dims)).unwrap();
        });
    }
}

async fn subgrids(world: &Comm, dims: [usize; 2]) -> Result<()> {
    let grid = world.cart(&dims, &[true, false]).await?;
    let (row, column) = (grid.sub(&[false, true]), grid.sub(&[true, false]));
    let (column, row) = (column.await?, row.await?);
    assert_eq!((row.dims(), column.dims()), (&dims[1..], &dims[..1]));
    assert_eq!(
        (row.periodic(), column.periodic()),
        (&[false][..], &[true][..])
    );
    assert_eq!([column.rank(), row.rank()], grid.coords());
    assert_eq!([column.coords()[0], row.coords()[0]], grid.coords());
    // The sum of a row is that of its ranks in the world.
    let sum = row.all_reduce(world.rank(), Sum).await?;
    let first = grid.coords()[0] * dims[1];
    assert_eq!(sum, (first..first + dims[1]).sum::<usize>());
    let (whole, point) = (grid.sub(&[true; 2]).await?, grid.sub(&[false; 2]).await?);
    assert_eq!((whole.dims(), whole.rank()), (&dims[..], grid.rank()));
    assert_eq!((point.dims(), point.size()), (&[][..], 1));
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_choice_of_dimensions_that_does_not_fit_the_grid_is_refused(world: Comm) -> Result<()> {
    let grid = world.cart(&[2, 1], &[false; 2]).await?;
    let error = grid
        .sub(&[true])
        .await
        .expect_err("one entry for two dimensions");
    assert!(
        matches!(error.kind, ErrorKind::InvalidArgument(_)),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("`keep` has 1 entries for 2 dimensions"),
        "{error}"
    );
    assert_eq!(grid.sub(&[true, false]).await?.size(), 2);
    let error = grid
        .sub(&[world.rank() == 0, true])
        .await
        .expect_err("they differ");
    assert!(matches!(error.kind, ErrorKind::Mismatch { .. }), "{error}");
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn grids_that_differ_are_an_error_with_both(world: Comm) {
    let wraps = world.rank() == 1;
    let error = world.cart(&[2, 1], &[false, wraps]).await.unwrap_err();
    let text = error.to_string();
    for wraps in [false, true] {
        let call = format!(
            "cart (dims [2, 1], periodic [false, {wraps}]) at {}:",
            file!()
        );
        assert!(text.contains(&call), "{text}");
    }
}

#[ripstop::test(ranks = 1)]
async fn coordinates_of_no_rank_are_refused(world: Comm) {
    let grid = world.cart(&[1], &[true]).await.unwrap();
    let refused = catch_unwind(AssertUnwindSafe(|| grid.coords_of(1))).unwrap_err();
    let sentence = refused.downcast_ref::<String>().unwrap();
    assert!(
        sentence.contains("`rank` is 1, and the grid has ranks 0..1"),
        "{sentence}"
    );
}

#[ripstop::test(ranks = 4)]
async fn wrong_dimensions_are_named(world: Comm) -> Result<()> {
    for (dims, periodic, words) in [
        (&[3, 2][..], &[true, true][..], ["`dims`", "[3, 2]", "4"]),
        (&[2, 2], &[true], ["`periodic`", "1", "2 dimensions"]),
        (&[4, 0], &[true, true], ["`dims`", "[4, 0]", "4"]),
        (&[usize::MAX, 2], &[true, true], ["`dims`", "2]", "4"]),
    ] {
        let error = world
            .cart(dims, periodic)
            .await
            .expect_err("wrong dimensions");
        assert!(matches!(error.kind, ErrorKind::InvalidArgument(_)));
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    let grid = world.cart(&Cart::dims_for(4, 2), &[true, true]).await?;
    assert_eq!(grid.dims(), [2, 2]);
    Ok(())
}
