//! Snippets of the tutorial: the same program, from a ring of numbers to heat in three dimensions.

// ANCHOR: imports
use std::{fs, io, os::unix::fs::FileExt, path::Path};
// ANCHOR_END: imports

use ripstop::{Cart, Halo, prelude::*, sim::Simulation};

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
    shows(
        include_str!("../src/tutorial.md"),
        &format!("rank 0: the sum of all numbers is {sum}"),
    );
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

#[ripstop::test(ranks = 4)]
async fn heat_moves_along_the_line(world: Comm) -> Result<()> {
    // ANCHOR: line
    let line = world.cart(&[world.size()], &[true]).await?; // the ranks in a row, with joined ends
    let mut heat = vec![0.0; 102]; // 100 cells of this rank, and a ghost at each end
    if line.rank() == 0 {
        heat[1] = 1.0;
    }
    // ANCHOR_END: line
    let begin = heat.clone();
    // ANCHOR: line_steps
    for _ in 0..200 {
        heat = step(&line, heat).await?;
    }
    let mine: f64 = heat[1..=100].iter().sum();
    let total = line.all_reduce(mine, Sum).await?;
    if line.rank() == 0 {
        println!("total heat {total:.6} on {} ranks", line.size());
    }
    // ANCHOR_END: line_steps
    let page = include_str!("../src/tutorial.md");
    shows(
        page,
        &format!("total heat {total:.6} on {} ranks", line.size()),
    );
    heat = begin;
    // ANCHOR: line_even
    let steps = until_even(&line, heat, 1e-5).await?;
    if line.rank() == 0 {
        println!("even after {steps} steps");
    }
    // ANCHOR_END: line_even
    shows(page, &format!("even after {steps} steps"));
    Ok(())
}

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

#[cfg(test)]
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
    // The page runs a larger box for longer. Its sum is the same, because no heat is lost.
    let total = heat_in_a_box(&world, 6, 10).await?;
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    let sentence = format!("total heat in the box {total:.6}");
    shows(include_str!("../src/tutorial.md"), &sentence);
    Ok(())
}

// ANCHOR: by_puts
/// Takes the same steps as `step`. The neighbors write into each other's ghosts.
async fn steps_by_puts(line: &Cart, mut heat: Vec<f64>, steps: usize) -> Result<Vec<f64>> {
    let last = heat.len() - 2;
    let (Some(left), Some(right)) = line.shift(0, 1) else {
        unreachable!("the ends of the line are joined")
    };
    let mut neighbors = vec![left, right];
    neighbors.dedup(); // of two ranks, each is both neighbors of the other
    let mut ghosts = Window::<f64>::allocate(line, 2).await?;
    for _ in 0..steps {
        let exposure = ghosts.post(&neighbors)?; // 1. the neighbors may write into this rank's ghosts
        let access = exposure.start(&neighbors).await?; // 2. this rank may write into theirs
        access.put(left, 1, heat[1]).detach(); // 3. the puts start
        access.put(right, 0, heat[last]).detach();
        let mut next = heat.clone();
        for (cell, new) in next.iter_mut().enumerate().take(last).skip(2) {
            *new = flow(&heat, cell); // needs no ghost
        }
        access.complete().await?; // 4. the neighbors may look
        let arrived = exposure.wait().await?; // 5. this rank may look, too
        (heat[0], heat[last + 1]) = (arrived[0], arrived[1]);
        for cell in [1, last] {
            next[cell] = flow(&heat, cell);
        }
        heat = next;
    }
    ghosts.free().await?;
    Ok(heat)
}
// ANCHOR_END: by_puts

#[ripstop::test(ranks = 4)]
async fn puts_give_what_messages_give(world: Comm) -> Result<()> {
    // ANCHOR: same_heat
    let line = world.cart(&[world.size()], &[true]).await?;
    let mut start = vec![0.0; 12];
    if line.rank() == 0 {
        start[1] = 1.0;
    }
    let by_puts = steps_by_puts(&line, start.clone(), 20).await?;
    let total = line
        .all_reduce(by_puts[1..11].iter().sum::<f64>(), Sum)
        .await?;
    let sentence = format!("total heat {total:.6} by puts");
    if line.rank() == 0 {
        println!("{sentence}");
    }
    // ANCHOR_END: same_heat
    let mut heat = start;
    for _ in 0..20 {
        heat = step(&line, heat).await?;
    }
    assert_eq!(by_puts[1..11], heat[1..11]);
    shows(include_str!("../src/tutorial_windows.md"), &sentence);
    Ok(())
}

// ANCHOR: drawn
/// Draws the pictures that no other rank has taken yet, and returns their number.
async fn draw_pictures(world: &Comm, pictures: u64) -> Result<u64> {
    let counter = Window::<u64>::allocate(world, 1).await?;
    let counter = counter.into_passive().await?; // from now on for locks only
    let lock = counter.lock_shared(0).await?; // the counter of rank 0; other ranks lock it as well
    let mut drawn = 0;
    while lock.fetch_add(0, 0, 1).await? < pictures {
        drawn += 1; // here this rank would draw
    }
    lock.unlock().await;
    counter.free().await?;
    Ok(drawn)
}
// ANCHOR_END: drawn

#[ripstop::test(ranks = 4)]
async fn each_picture_is_drawn_once(world: Comm) -> Result<()> {
    // ANCHOR: pictures
    let drawn = draw_pictures(&world, 100).await?;
    let all = world.all_reduce(drawn, Sum).await?;
    let sentence = format!("{all} pictures on {} ranks", world.size());
    if world.rank() == 0 {
        println!("{sentence}");
    }
    // ANCHOR_END: pictures
    shows(include_str!("../src/tutorial_windows.md"), &sentence);
    Ok(())
}

// ANCHOR: constants
const CELLS: usize = 1000; // of all ranks together
const HEADER: usize = 8; // bytes: the number of the step
// ANCHOR_END: constants

// ANCHOR: survive
/// Takes `steps` steps with the ranks that live, and returns a sentence about the end.
async fn survive(world: Comm, steps: u64, path: &Path) -> Result<String> {
    let mut ring = world;
    loop {
        let ended = advance(&ring, steps, path).await;
        if ended.is_err() {
            ring.revoke(); // wakes ranks that wait in a step for this one
        }
        if ring.agree(ended.is_ok()).await? {
            return ended; // all ranks have come to the end
        }
        ring = ring.shrink().await?; // the ranks that live
    }
}
// ANCHOR_END: survive

// ANCHOR: advance
/// Goes on from the last checkpoint, and writes one after every tenth step.
async fn advance(ring: &Comm, steps: u64, path: &Path) -> Result<String> {
    let share = |rank| rank * CELLS / ring.size();
    let (first, end) = (share(ring.rank()), share(ring.rank() + 1));
    let mut heat = vec![0.0; end - first + 2]; // with two ghosts
    let own = 1..heat.len() - 1;
    let done = read(path, first, &mut heat[own.clone()]).expect("the checkpoint");
    for count in done + 1..=steps {
        heat = step_in_ring(ring, heat).await?;
        if count % 10 == 0 {
            write(ring, path, count, first, &heat[own.clone()]).await?;
        }
    }
    let mine: f64 = heat[own].iter().sum();
    let total = ring.all_reduce(mine, Sum).await?;
    let ranks = ring.size();
    Ok(format!(
        "total heat {total:.6}, from step {done} on by {ranks} ranks"
    ))
}
// ANCHOR_END: advance

// ANCHOR: step_in_ring
async fn step_in_ring(ring: &Comm, mut heat: Vec<f64>) -> Result<Vec<f64>> {
    let (rank, size, last) = (ring.rank(), ring.size(), heat.len() - 2);
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let to_right = ring.sendrecv_into(right, left, 0, heat[last], heat[0]);
    let to_left = ring.sendrecv_into(left, right, 1, heat[1], heat[last + 1]);
    let (_, from_left, _) = to_right.await?;
    let (_, from_right, _) = to_left.await?;
    (heat[0], heat[last + 1]) = (from_left, from_right);
    let mut next = heat.clone();
    for (cell, new) in next.iter_mut().enumerate().take(last + 1).skip(1) {
        *new = flow(&heat, cell);
    }
    Ok(next)
}
// ANCHOR_END: step_in_ring

// ANCHOR: files
/// Writes the part of this rank into a new file, which then takes the place of the old one.
async fn write(ring: &Comm, path: &Path, step: u64, first: usize, heat: &[f64]) -> Result<()> {
    let unfinished = path.with_extension("new");
    if ring.rank() == 0 {
        fs::write(&unfinished, step.to_le_bytes()).expect("a new file");
    }
    ring.barrier().await?; // the file is there
    let file = fs::File::options().write(true).open(&unfinished);
    let written = file.and_then(|file| file.write_all_at(bytemuck::cast_slice(heat), place(first)));
    written.expect("writing the checkpoint");
    ring.barrier().await?; // all ranks have written
    if ring.rank() == 0 {
        fs::rename(&unfinished, path).expect("the new checkpoint");
    }
    Ok(())
}

/// Reads the part of this rank, and returns the number of the step. Without a file, the heat is in the first cell.
fn read(path: &Path, first: usize, heat: &mut [f64]) -> io::Result<u64> {
    if !path.exists() {
        heat[0] = if first == 0 { 1.0 } else { 0.0 };
        return Ok(0);
    }
    let file = fs::File::open(path)?;
    let mut step = [0; HEADER];
    file.read_exact_at(&mut step, 0)?;
    file.read_exact_at(bytemuck::cast_slice_mut(heat), place(first))?;
    Ok(u64::from_le_bytes(step))
}

fn place(cell: usize) -> u64 {
    (HEADER + 8 * cell) as u64
}
// ANCHOR_END: files

#[test]
fn three_of_four_ranks_finish_what_four_began() {
    // ANCHOR: killed
    let path = std::env::temp_dir().join(format!("ripstop_tutorial_{}", std::process::id()));
    let _absent = fs::remove_file(&path);
    let checkpoint = path.clone();
    let simulation = Simulation::new(4).faults("kill=2@30us");
    let report = simulation.run(move |world| {
        let path = checkpoint.clone();
        async move { survive(world, 50, &path).await }
    });
    let results = report.expect("three ranks live").results;
    // ANCHOR_END: killed
    assert!(results[2].is_none(), "rank 2 is dead");
    for sentence in results.into_iter().flatten() {
        let sentence = sentence.expect("the others go on");
        shows(include_str!("../src/tutorial_failures.md"), &sentence);
    }
    fs::remove_file(&path).expect("a checkpoint was written");
}

/// Checks that a page shows this line of output.
fn shows(page: &str, output: &str) {
    assert!(
        page.lines().any(|line| line == output),
        "the page lacks: {output}"
    );
}
