//! Snippets of the chapter on arrays.

use ripstop::{Cart, Collectives, Comm, Halo, Result, buffer::Layout};

#[ripstop::test(ranks = 2)]
async fn faces_of_one_array(world: Comm) -> Result<()> {
    let other = 1 - world.rank();
    // ANCHOR: packed
    let shape = [10, 12, 14]; // z, y, x, with one layer of ghosts around
    let mut u = vec![world.rank() as f32; 10 * 12 * 14];
    let last_layer = Layout::subarray(&shape, &[1..9, 1..11, 12..13]);
    let low_ghosts = Layout::subarray(&shape, &[1..9, 1..11, 0..1]);

    let inbox = world.recv_packed(other, 7, &low_ghosts);
    let sent = world.send_packed(other, 7, &u, &last_layer); // packs; `u` is free again
    u[0] = 3.0;
    let status = inbox.unpack_into(&mut u).await?;
    sent.await?;
    assert_eq!(status.len, 8 * 10);
    // ANCHOR_END: packed
    assert_eq!(u[12 * 14 + 14].to_bits(), (other as f32).to_bits());
    Ok(())
}

// ANCHOR: halo
/// Heat in a block of 3-D cells with one layer of ghosts. The grid of ranks wraps around in x.
async fn diffuse(world: &Comm, cells: [usize; 3], steps: usize) -> Result<Vec<f64>> {
    let grid = Cart::dims_for(world.size(), 3);
    let cart = world.cart(&grid, &[false, false, true]).await?;
    let shape = cells.map(|n| n + 2);
    let mut halo = Halo::new(&cart, &shape, 1).await?;
    let mut u = vec![0.0; shape.iter().product()];
    if cart.rank() == 0 {
        u[at(shape, 1, 1, 1)] = 1.0;
    }
    let mut v = u.clone();
    let [nz, ny, nx] = cells;
    for _ in 0..steps {
        let in_flight = halo.start(&u);
        update(&u, &mut v, shape, |z, y, x| {
            (2..nz).contains(&z) && (2..ny).contains(&y) && (2..nx).contains(&x)
        });
        in_flight.finish(&mut u).await?;
        update(&u, &mut v, shape, |z, y, x| {
            z == 1 || z == nz || y == 1 || y == ny || x == 1 || x == nx
        });
        std::mem::swap(&mut u, &mut v);
    }
    Ok(u)
}

fn update(
    u: &[f64],
    v: &mut [f64],
    shape: [usize; 3],
    takes: impl Fn(usize, usize, usize) -> bool,
) {
    let [plane, row] = [shape[1] * shape[2], shape[2]];
    for z in 1..shape[0] - 1 {
        for y in 1..shape[1] - 1 {
            for x in (1..shape[2] - 1).filter(|&x| takes(z, y, x)) {
                let i = at(shape, z, y, x);
                let around =
                    u[i - plane] + u[i + plane] + u[i - row] + u[i + row] + u[i - 1] + u[i + 1];
                v[i] = u[i] + 0.1 * (around - 6.0 * u[i]);
            }
        }
    }
}

fn at(shape: [usize; 3], z: usize, y: usize, x: usize) -> usize {
    (z * shape[1] + y) * shape[2] + x
}
// ANCHOR_END: halo

#[ripstop::test(ranks = 4)]
async fn heat_spreads_over_the_ranks_as_on_one(world: Comm) -> Result<()> {
    // Of 4 ranks, two each in z and y.
    let (cells, steps) = ([4, 5, 6], 5);
    let mine = diffuse(&world, cells, steps).await?;
    let (shape, whole_shape) = (cells.map(|n| n + 2), [10, 12, 8]);
    let mut whole = vec![0.0; 10 * 12 * 8];
    whole[at(whole_shape, 1, 1, 1)] = 1.0;
    let mut next = whole.clone();
    for _ in 0..steps {
        for row in whole.chunks_exact_mut(8) {
            (row[0], row[7]) = (row[6], row[1]);
        }
        update(&whole, &mut next, whole_shape, |_, _, _| true);
        std::mem::swap(&mut whole, &mut next);
    }
    let (z0, y0) = (world.rank() / 2 * 4, world.rank() % 2 * 5);
    for z in 1..=4 {
        for y in 1..=5 {
            let got = &mine[at(shape, z, y, 1)..][..6];
            assert_eq!(
                got,
                &whole[at(whole_shape, z + z0, y + y0, 1)..][..6],
                "row {y} of plane {z}"
            );
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn a_matrix_is_transposed(world: Comm) -> Result<()> {
    let (b, size) = (3, world.size());
    let n = b * size;
    let value = |row: usize, column: usize| row * n + column;
    let first = world.rank() * b;
    let rows: Vec<usize> = (0..b * n).map(|i| value(first + i / n, i % n)).collect();
    // ANCHOR: transpose
    // This rank has `b` rows of a matrix of `n` rows and columns, and wants its `b` columns.
    let blocks = Layout::subarray(&[b, n], &[0..b, 0..b]).repeated(b, size);
    let mut packed = Vec::new();
    blocks.pack(&rows, &mut packed);
    let received = world.all_to_all(packed).await?;

    let column = Layout {
        offset: 0,
        block: 1,
        stride: n,
        count: b,
    };
    let mut columns = vec![0; b * n];
    column
        .repeated(1, b)
        .repeated(b, size)
        .unpack(&received, &mut columns);
    // ANCHOR_END: transpose
    let expected = (0..b * n).map(|i| value(i % n, first + i / n));
    assert_eq!(columns, expected.collect::<Vec<_>>());
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn tiles_are_gathered(world: Comm) -> Result<()> {
    let (height, width) = (2, 3);
    let tile = vec![world.rank(); height * width];
    // ANCHOR: tiles
    let grid = world.cart(&[2, 2], &[false; 2]).await?;
    if let Some(tiles) = grid.gather(0, tile).await? {
        let mut picture = vec![0; 2 * height * 2 * width];
        for (rank, tile) in tiles.chunks(height * width).enumerate() {
            let at = grid.coords_of(rank);
            let (y, x) = (at[0] * height, at[1] * width);
            Layout::subarray(&[2 * height, 2 * width], &[y..y + height, x..x + width])
                .unpack(tile, &mut picture);
        }
        // ANCHOR_END: tiles
        let expected = [
            [0, 0, 0, 1, 1, 1],
            [0, 0, 0, 1, 1, 1],
            [2, 2, 2, 3, 3, 3],
            [2, 2, 2, 3, 3, 3],
        ];
        assert_eq!(picture, expected.concat());
    }
    Ok(())
}
