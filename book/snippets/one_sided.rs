//! Snippets of the chapter on one-sided communication.

use std::time::Duration;

use ripstop::rma::{NoOp, NodeWindow, Overlap, PassiveWindow};

// ANCHOR: first
use ripstop::prelude::*;

#[ripstop::test(ranks = 4)]
async fn each_rank_puts_into_the_window_of_the_next(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    let mut window = Window::<f64>::allocate(&world, 1000).await?;

    let exposure = window.post(&[left])?; // left may write here
    let access = exposure.start(&[right]).await?; // once `right` has posted
    access.put(right, 0, vec![me as f64; 1000]).await?;
    access.complete().await?; // right may look
    let mine = exposure.wait().await?; // left has completed: a slice
    assert!(mine.iter().all(|&value| value == left as f64));

    window.free().await
}
// ANCHOR_END: first

#[ripstop::test(ranks = 2)]
async fn a_computation_runs_while_puts_are_on_their_way(world: Comm) -> Result<()> {
    let other = 1 - world.rank();
    let mut window = Window::<f64>::allocate(&world, 64).await?;
    let interior = [2.0; 1000];
    let mut edge = vec![3.0; 64];
    for _step in 0..3 {
        // ANCHOR: overlap
        let exposure = window.post(&[other])?; // early, because others wait for a late post
        let access = exposure.start(&[other]).await?;
        let put = access.put(other, 0, edge);
        let energy: f64 = interior.iter().map(|x| x * x).sum(); // no future is polled meanwhile
        edge = put.await?; // the buffer is free again
        access.complete().await?;
        let ghosts = exposure.wait().await?;
        // ANCHOR_END: overlap
        assert_eq!((energy, ghosts[63]), (4000.0, 3.0));
    }
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn fences_separate_what_all_put_from_what_all_get(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let mut window = Window::<u64>::allocate(&world, size).await?;
    // ANCHOR: fence
    let epoch = window.fence().await?; // every rank is open to every rank
    for rank in 0..size {
        epoch.put(rank, me, [10 + me as u64]).detach();
    }
    let epoch = epoch.fence().await?; // all of that is there
    let [first] = epoch.get((me + 1) % size, 0, [0]).await?;
    let mine = epoch.end().await?; // no other rank accesses it any more
    // ANCHOR_END: fence
    assert_eq!(first, 10);
    assert_eq!(mine, [10, 11, 12]);
    window.free().await
}

const TASKS: u64 = 100;

#[ripstop::test(ranks = 3)]
async fn every_task_is_taken_once(world: Comm) -> Result<()> {
    let mut taken = 0;
    // ANCHOR: counter
    let window = Window::<u64>::allocate(&world, 1).await?;
    let window = window.into_passive().await?;
    let lock = window.lock_shared(0).await?; // other ranks lock it as well
    while lock.fetch_add(0, 0, 1).await? < TASKS {
        taken += 1; // the task is ours
    }
    lock.unlock().await;
    // ANCHOR_END: counter
    let all = world.all_reduce(taken, Sum).await?;
    assert_eq!(all, TASKS);
    window.free().await
}

#[ripstop::test(ranks = 3)]
async fn two_numbers_that_belong_together_are_changed_under_a_lock(world: Comm) -> Result<()> {
    let window = Window::<u64>::allocate(&world, 2).await?;
    let mut window = window.into_passive().await?;
    add(&window, 5).await?;
    world.barrier().await?;
    // ANCHOR: own
    let mut own = window.lock_self().await?; // no other rank is inside
    let numbers = own.mem(); // a slice, as long as it is locked
    // ANCHOR_END: own
    let expected = if world.rank() == 0 { [3, 15] } else { [0, 0] };
    assert_eq!(numbers, expected);
    drop(own);
    window.free().await
}

// ANCHOR: exclusive
async fn add(window: &PassiveWindow<u64>, value: u64) -> Result<()> {
    let lock = window.lock_exclusive(0).await?; // alone with the memory of rank 0
    let [count, sum] = lock.get(0, 0, [0; 2]).await?;
    lock.put(0, 0, [count + 1, sum + value]).await?;
    lock.unlock().await; // waits until the put is there
    Ok(())
}
// ANCHOR_END: exclusive

#[ripstop::test(ranks = 2)]
async fn what_a_flush_waited_for_is_seen_by_its_owner(world: Comm) -> Result<()> {
    let window = Window::<u32>::allocate(&world, 2).await?;
    let window = window.into_passive().await?;
    if world.rank() == 1 {
        // ANCHOR: flush
        let lock = window.lock_all().await?;
        lock.put(0, 0, [7]).await?; // the buffer is free
        lock.flush(0).await?; // and rank 0 has it
        lock.fetch_add(0, 1, 1).await?; // then the other rank may be notified
        // ANCHOR_END: flush
        lock.unlock().await;
    } else {
        // ANCHOR: shared
        while window.shared().get(1) == 0 {
            world.sleep(Duration::from_micros(50)).await;
        }
        let value = window.shared().get(0);
        // ANCHOR_END: shared
        assert_eq!(value, 7);
    }
    window.free().await
}

#[ripstop::test(ranks = 3)]
async fn one_rank_becomes_the_leader(world: Comm) -> Result<()> {
    let window = Window::<i32>::allocate(&world, 1).await?;
    let window = window.into_passive().await?;
    let lock = window.lock_shared(0).await?;
    // ANCHOR: swap
    let before = lock.compare_exchange(0, 0, 0, 1).await?; // 1, if it is still 0
    let leads = before == 0;
    // ANCHOR_END: swap
    // ANCHOR: operators
    let seen = lock.fetch_op(0, 0, 5, Max).await?; // the greater one stays; what was there comes back
    let now = lock.fetch_op(0, 0, 0, NoOp).await?; // an atomic read
    // ANCHOR_END: operators
    assert!((1..=5).contains(&seen) && now == 5);
    lock.unlock().await;
    let leaders = world.all_reduce(u32::from(leads), Sum).await?;
    assert_eq!(leaders, 1);
    window.free().await
}

#[ripstop::test(ranks = 4)]
async fn a_histogram_is_filled_by_all_ranks(world: Comm) -> Result<()> {
    const BINS: usize = 4; // on each rank
    const GREATEST: usize = 63;
    let values: Vec<usize> = (0..=GREATEST).collect();
    // ANCHOR: histogram
    let bins = Window::<u64>::allocate(&world, BINS).await?;
    let mut bins = bins.into_passive().await?;
    let all = bins.lock_all().await?; // shared locks, so ranks count at the same time
    for value in &values {
        let bin = value * BINS * world.size() / (GREATEST + 1);
        all.accumulate(bin / BINS, bin % BINS, [1], Sum).detach();
    }
    all.unlock().await; // all updates of this rank are complete
    world.barrier().await?; // and those of all other ranks
    let counts = bins.lock_self().await?.mem().to_vec(); // this rank's bins
    // ANCHOR_END: histogram
    assert_eq!(counts, [16; BINS]); // 64 values of each of 4 ranks in 16 bins
    bins.free().await
}

#[ripstop::test(ranks = 2)]
async fn a_column_goes_into_a_matrix(world: Comm) -> Result<()> {
    let other = 1 - world.rank();
    let mut window = Window::<f32>::allocate(&world, 12).await?;
    let epoch = window.fence().await?;
    // ANCHOR: strided
    let second_column = Layout {
        offset: 1,
        block: 1,
        stride: 4,
        count: 3,
    };
    epoch.put_strided(other, second_column, [1.0; 3]).await?;
    epoch.put_indexed(other, &[0..1, 10..12], [2.0; 3]).await?;
    // ANCHOR_END: strided
    let epoch = epoch.fence().await?;
    // ANCHOR: accumulate_strided
    epoch
        .accumulate_strided(other, second_column, [0.5; 3], Sum)
        .await?;
    // ANCHOR_END: accumulate_strided
    let mine = epoch.end().await?;
    assert_eq!(mine[..6], [2.0, 1.5, 0.0, 0.0, 0.0, 1.5]);
    assert_eq!(mine[6..], [0.0, 0.0, 0.0, 1.5, 2.0, 2.0]);
    window.free().await
}

#[ripstop::test(ranks = 2)]
async fn a_start_towards_a_rank_that_does_not_post_gives_up(world: Comm) -> Result<()> {
    let window = Window::<f64>::allocate(&world, 1).await?;
    if world.rank() == 0 {
        // ANCHOR: timeout
        let limit = Duration::from_millis(2);
        if let Err(error) = window.start(&[1]).timeout(limit).await {
            eprintln!("{error}"); // names the window, rank 1 and the line of the call
            assert!(matches!(error.kind, ErrorKind::NeverPosted { .. }));
        }
        // ANCHOR_END: timeout
    }
    window.free().await
}

#[ripstop::test(ranks = 2)]
async fn an_exposure_that_was_dropped_is_taken_up_again(world: Comm) -> Result<()> {
    let mut window = Window::<f64>::allocate(&world, 1).await?;
    let other = 1 - world.rank();
    drop(window.post(&[other])?);
    window.start(&[other]).await?.complete().await?;
    // ANCHOR: resume
    if let Some(exposure) = window.resume() {
        exposure.wait().await?;
    }
    window.local_mut()[0] = 1.0;
    // ANCHOR_END: resume
    window.free().await
}

#[ripstop::test(ranks = 2)]
async fn neighbors_are_met_ahead_and_long_copies_handed_over(world: Comm) -> Result<()> {
    let other = 1 - world.rank();
    let field = vec![1.5; 1 << 15];
    // ANCHOR: made
    let mut window = Window::from_vec(&world, field).await?;
    window.meet(&[other]).await?; // the first epoch costs no more than later ones
    window.set_overlap(Overlap::Agent); // 128 KiB and more are copied while this rank computes
    // ANCHOR_END: made
    let exposure = window.post(&[other])?;
    let access = exposure.start(&[other]).await?;
    access.put(other, 0, vec![2.5; 1 << 15]).detach();
    access.complete().await?;
    exposure.wait().await?;
    // ANCHOR: given
    let field = window.into_vec().await?;
    // ANCHOR_END: given
    assert_eq!(field, vec![2.5; 1 << 15]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn memory_is_attached_and_detached(world: Comm) -> Result<()> {
    // ANCHOR: dynamic
    let mut window = Window::<u64>::dynamic(&world).await?;
    if world.rank() == 0 {
        let piece = window.attach(world.alloc(100)?)?;
        world.send(1, 0, [piece.at(10) as u64]).await?; // no other rank knows where it is
        window.post(&[1])?.wait().await?;
        assert_eq!(window.piece_mut(piece)?[10], 7);
        drop(window.detach(piece)?); // out of reach of all ranks
    } else {
        let ([at], _) = world.recv_into(0, 0, [0_u64]).await?;
        let access = window.start(&[0]).await?;
        let at = usize::try_from(at).expect("an element's number");
        access.put(0, at, [7]).await?;
        access.complete().await?;
    }
    // ANCHOR_END: dynamic
    window.free().await
}

#[ripstop::test(ranks = 3)]
async fn a_table_is_read_in_place_by_all_ranks_of_a_node(world: Comm) -> Result<()> {
    // ANCHOR: node
    let node = world.split_node().await?;
    let len = if node.rank() == 0 { 1_000_000 } else { 0 };
    let mut table = NodeWindow::<f64>::allocate(&node, len).await?; // once for each node
    for (energy, entry) in table.local_mut()?.iter_mut().enumerate() {
        *entry = 1.0 / (1.0 + energy as f64);
    }
    let view = table.share().await?; // all ranks: no rank writes any more
    let cross_sections: &[f64] = view.part(0)?; // memory of the node's rank 0, not a copy
    let found = cross_sections[999];
    view.end().await?; // all ranks: no rank reads any more, and each may write its part
    // ANCHOR_END: node
    assert_eq!(found, 0.001);
    table.free().await
}
