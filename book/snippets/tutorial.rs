//! Snippets of the tutorial: the same program, from a ring of numbers to heat in three dimensions.

use ripstop::{Cart, Halo, prelude::*};

#[ripstop::test(ranks = 4)]
async fn numbers_go_around(world: Comm) -> Result<()> {
    // ANCHOR: ring
    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let mut sum = rank;
    let mut passed_on = vec![rank];
    for _ in 1..size {
        let inbox = world.recv::<usize>(left, 0); // 1. the receive starts
        let outbox = world.send(right, 0, passed_on); // 2. the send starts
        let (from_left, _) = inbox.await?; // 3. both are in flight until here
        outbox.await?;
        sum += from_left[0];
        passed_on = from_left;
    }
    println!("rank {rank}: the sum of all numbers is {sum}");
    // ANCHOR_END: ring
    assert_eq!(sum, 6);
    Ok(())
}

// ANCHOR: step
/// One step of heat on a ring of ranks. The first and the last element are ghosts.
async fn step(line: &Cart, mut heat: Vec<f64>) -> Result<Vec<f64>> {
    let (left, right) = line.shift(0, 1);
    let last = heat.len() - 2;
    let from_left = line.recv_into(left, 0, heat[0]);
    let from_right = line.recv_into(right, 1, heat[last + 1]);
    let to_right = line.send(right, 0, heat[last]);
    let to_left = line.send(left, 1, heat[1]);
    let mut next = heat.clone();
    for (cell, new) in next.iter_mut().enumerate().take(last).skip(2) {
        *new = flow(&heat, cell); // needs no ghost
    }
    (heat[0], _) = from_left.await?;
    (heat[last + 1], _) = from_right.await?;
    for cell in [1, last] {
        next[cell] = flow(&heat, cell);
    }
    to_right.await?;
    to_left.await?;
    Ok(next)
}

fn flow(heat: &[f64], cell: usize) -> f64 {
    heat[cell] + 0.25 * (heat[cell - 1] - 2.0 * heat[cell] + heat[cell + 1])
}
// ANCHOR_END: step

// ANCHOR: until_even
/// Steps until no cell of any rank changes by more than `limit`, and returns the number of steps.
async fn until_even(line: &Cart, mut heat: Vec<f64>, limit: f64) -> Result<usize> {
    for count in 1.. {
        let next = step(line, heat.clone()).await?;
        let own = 1..heat.len() - 1;
        let changes = own.map(|cell| (next[cell] - heat[cell]).abs());
        let largest = line.all_reduce(changes.fold(0.0, f64::max), Max).await?;
        if largest <= limit {
            return Ok(count);
        }
        heat = next;
    }
    unreachable!("heat spreads until it is even")
}
// ANCHOR_END: until_even

#[ripstop::test(ranks = 2)]
async fn a_few_cells_become_even(world: Comm) -> Result<()> {
    let line = world.cart(&[2], &[true]).await?;
    let mut heat = vec![0.0; 6];
    heat[1] = line.rank() as f64;
    let steps = until_even(&line, heat, 1e-3).await?;
    assert!((10..100).contains(&steps), "{steps} steps");
    Ok(())
}

// ANCHOR: test
#[ripstop::test(ranks = 3)]
async fn heat_is_kept(world: Comm) -> Result<()> {
    keeps_heat(&world, 20).await
}

async fn keeps_heat(world: &Comm, steps: usize) -> Result<()> {
    let line = world.cart(&[world.size()], &[true]).await?;
    let mut heat = vec![0.0; 12];
    heat[5] = line.rank() as f64;
    for _ in 0..steps {
        heat = step(&line, heat).await?;
    }
    let total = line
        .all_reduce(heat[1..11].iter().sum::<f64>(), Sum)
        .await?;
    let expected: usize = (0..line.size()).sum();
    assert!((total - expected as f64).abs() < 1e-9, "{total}");
    Ok(())
}
// ANCHOR_END: test

// ANCHOR: sim
#[ripstop::sim(ranks = 256, fabric = "hdr", faults = "drop=0.01", seed = 7)]
async fn heat_is_kept_by_many_ranks(world: Comm) -> Result<()> {
    keeps_heat(&world, 5).await
}
// ANCHOR_END: sim

// ANCHOR: three_dimensions
/// Heat in a box of `cells`³ cells for each rank. Returns the heat of all ranks together.
async fn heat_in_a_box(world: &Comm, cells: usize, steps: usize) -> Result<f64> {
    let grid = Cart::dims_for(world.size(), 3);
    let grid = world.cart(&grid, &[true; 3]).await?;
    let side = cells + 2; // with a ghost at each end
    let mut halo = Halo::new(&grid, &[side; 3], 1).await?;
    let (inner, outer) = own_cells(side);
    let mut heat = vec![0.0; side * side * side];
    if grid.rank() == 0 {
        heat[outer[0]] = 1.0;
    }
    for _ in 0..steps {
        let in_flight = halo.start(&heat);
        let mut next = heat.clone();
        for &cell in &inner {
            next[cell] = spread(&heat, side, cell);
        }
        in_flight.finish(&mut heat).await?; // fills the ghosts
        for &cell in &outer {
            next[cell] = spread(&heat, side, cell);
        }
        heat = next;
    }
    let mine: f64 = inner.iter().chain(&outer).map(|&cell| heat[cell]).sum();
    grid.all_reduce(mine, Sum).await.map_err(Into::into)
}

/// The cells that need no ghost, and those that need some.
fn own_cells(side: usize) -> (Vec<usize>, Vec<usize>) {
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    for z in 1..side - 1 {
        for y in 1..side - 1 {
            for x in 1..side - 1 {
                let is_inner = [z, y, x].iter().all(|at| (2..side - 2).contains(at));
                let cells = if is_inner { &mut inner } else { &mut outer };
                cells.push((z * side + y) * side + x);
            }
        }
    }
    (inner, outer)
}

fn spread(heat: &[f64], side: usize, cell: usize) -> f64 {
    let plane = side * side;
    let around = heat[cell - 1] + heat[cell + 1] + heat[cell - side] + heat[cell + side];
    let above_and_below = heat[cell - plane] + heat[cell + plane];
    heat[cell] + 0.1 * (around + above_and_below - 6.0 * heat[cell])
}
// ANCHOR_END: three_dimensions

#[ripstop::test(ranks = 4)]
async fn heat_in_a_box_is_kept(world: Comm) -> Result<()> {
    let total = heat_in_a_box(&world, 6, 10).await?;
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    Ok(())
}
