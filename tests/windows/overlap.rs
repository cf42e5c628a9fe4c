//! Copies by the progress agent, where memory is mapped. Elsewhere adapters move long data, and no thread copies it.

use ripstop::{Collectives, Runtime, Window, fabric::registry::FabricSelection, rma::Overlap};

use crate::ranks;

const LEN: usize = 1 << 20;

/// Returns true if memory of other ranks is mapped here, which is so only over shared memory.
fn is_mapped(runtime: &Runtime) -> bool {
    let settings = runtime.settings();
    let fabric = settings.iter().find(|row| row.name == "RIPSTOP_FABRIC");
    let fabric = fabric.and_then(|row| FabricSelection::named(&row.value));
    fabric.is_some_and(FabricSelection::is_shared_memory)
}

/// Rank 0 puts to rank 1 by an adapter, and no thread copies.
async fn put_and_copy_nothing(runtime: &Runtime, window: &Window<u64>) {
    let access = window.start(&[1]).await.unwrap();
    let before = runtime.counters();
    let put = access.put(1, 0, vec![7; LEN]);
    access.complete().await.unwrap();
    assert!(put.is_done(), "a complete epoch has nothing in flight");
    let copied = (runtime.counters() - before).bytes_copied;
    assert!(copied < LEN as u64, "{copied} bytes");
}

/// Rank 0 puts to rank 1, and neither awaits the put nor makes a turn until it is complete.
async fn put_and_compute(runtime: &Runtime, window: &Window<u64>) {
    while runtime.agent_cpu().is_none() {
        std::thread::yield_now(); // its thread has not begun yet
    }
    let access = window.start(&[1]).await.unwrap();
    let before = (runtime.counters(), runtime.agent_cpu().unwrap());
    let short = access.put(1, 0, vec![1; 8]);
    assert!(short.is_done(), "the caller copies what is short");
    let put = access.put(1, 0, vec![7; LEN]);
    while !put.is_done() {
        std::thread::yield_now();
    }
    let copied = (runtime.counters() - before.0).bytes_copied;
    assert!(copied >= 8 * LEN as u64, "{copied} bytes");
    assert!(runtime.agent_cpu().unwrap() > before.1);
    drop(put);
    let get = access.get(1, 0, vec![0; LEN]);
    access.complete().await.unwrap();
    assert!(get.is_done(), "a complete epoch has nothing in flight");
    assert_eq!(get.await.unwrap(), vec![7; LEN]);
}

#[test]
fn a_long_put_is_copied_while_its_caller_computes() {
    ranks::run(2, &[("RIPSTOP_PROGRESS", "thread")], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let mut window = Window::<u64>::allocate(&world, LEN).await.unwrap();
            window.set_overlap(Overlap::Agent);
            if world.rank() == 0 && is_mapped(&runtime) {
                put_and_compute(&runtime, &window).await;
            } else if world.rank() == 0 {
                put_and_copy_nothing(&runtime, &window).await;
            } else {
                let mine = window.post(&[0]).unwrap().wait().await.unwrap();
                assert!(mine.iter().all(|&elem| elem == 7));
            }
            world.barrier().await.unwrap();
        });
    });
}

/// A computation that takes longer than the copy of a put.
fn compute() {
    for _ in 0..4 {
        std::hint::black_box(vec![3_u64; LEN].clone());
    }
}

/// Rank 0 puts to rank 1, and computes after each put until the agent does one of them and the computation hides it.
async fn put_and_compute_until_handed_over(window: &Window<u64>) {
    let access = window.start(&[1]).await.unwrap();
    let mut block = vec![7; LEN];
    let mut puts = 0;
    loop {
        let put = access.put(1, 0, block);
        puts += 1;
        if !put.is_done() {
            while !put.is_done() {
                std::thread::yield_now();
            }
            break;
        }
        assert!(puts < 40, "the caller still copies");
        compute();
        block = put.await.unwrap();
    }
    assert!(puts > 2, "one computation shows nothing");
    access.complete().await.unwrap();
}

async fn put_and_wait(window: &Window<u64>) {
    let access = window.start(&[1]).await.unwrap();
    let mut block = vec![7; LEN];
    for _ in 0..8 {
        let put = access.put(1, 0, block);
        assert!(
            put.is_done(),
            "the thread that waits for its copies makes them"
        );
        block = put.await.unwrap();
    }
    access.complete().await.unwrap();
}

fn chosen(origin: impl AsyncFn(&Window<u64>) + Send + Sync + 'static) {
    ranks::run(2, &[("RIPSTOP_PROGRESS", "thread")], move |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let mut window = Window::<u64>::allocate(&world, LEN).await.unwrap();
            while runtime.agent_cpu().is_none() {
                std::thread::yield_now(); // its thread has not begun yet
            }
            if world.rank() == 0 && is_mapped(&runtime) {
                origin(&window).await;
            } else if world.rank() == 0 {
                put_and_copy_nothing(&runtime, &window).await;
            } else {
                let mine = window.post(&[0]).unwrap().wait().await.unwrap();
                assert!(mine.iter().all(|&elem| elem == 7));
            }
            world.barrier().await.unwrap();
        });
    });
}

#[test]
fn copies_become_the_agents_when_their_caller_computes_after_each() {
    chosen(put_and_compute_until_handed_over);
}

#[test]
fn copies_stay_the_callers_when_it_waits_for_each() {
    chosen(put_and_wait);
}

#[test]
fn without_an_agent_the_caller_copies() {
    ranks::run(2, &[("RIPSTOP_PROGRESS", "inline")], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let mut window = Window::<u64>::allocate(&world, LEN).await.unwrap();
            window.set_overlap(Overlap::Agent);
            if world.rank() == 0 && is_mapped(&runtime) {
                let access = window.start(&[1]).await.unwrap();
                assert!(access.put(1, 0, vec![7; LEN]).is_done());
                access.complete().await.unwrap();
            } else if world.rank() == 0 {
                put_and_copy_nothing(&runtime, &window).await;
            } else {
                let mine = window.post(&[0]).unwrap().wait().await.unwrap();
                assert!(mine.iter().all(|&elem| elem == 7));
            }
        });
        assert!(runtime.agent_cpu().is_none());
    });
}
