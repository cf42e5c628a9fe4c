//! Messages between ranks.

use ripstop::{Collectives, Comm, Result, Source, Tag};

#[ripstop::test(ranks = 4)]
async fn a_ring_passes_every_value_on(world: Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    for len in [0, 1, 10, 1000, 100_000, 1_000_000] {
        let inbox = world.recv::<f64>((rank + size - 1) % size, 7);
        let mine = world
            .send((rank + 1) % size, 7, vec![rank as f64; len])
            .await?;
        assert_eq!(mine, vec![rank as f64; len]);
        let (got, status) = inbox.await?;
        assert_eq!(got, vec![((rank + size - 1) % size) as f64; len]);
        assert_eq!(
            (status.source, status.tag, status.len),
            ((rank + size - 1) % size, 7, len)
        );
    }
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn anybody_can_be_received_from(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        let mut from = Vec::new();
        for _ in 1..world.size() {
            let (text, status) = world.recv::<u8>(Source::Any, Tag::Any).await?;
            assert_eq!(usize::from(text[0]), status.source);
            from.push(status.source);
        }
        from.sort_unstable();
        assert_eq!(from, [1, 2]);
    } else {
        let rank = u8::try_from(world.rank()).expect("three ranks");
        world.send(0, u32::from(rank), [rank]).await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 4, process)]
async fn ranks_can_be_processes(world: Comm) -> Result<()> {
    world.barrier().await?;
    let [sum] = world
        .all_reduce([world.rank() as u64], ripstop::Sum)
        .await?;
    assert_eq!(sum, 6);
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_buffer_that_is_larger_than_memory_is_an_error_with_both_numbers(world: Comm) {
    let error = world
        .alloc::<f64>(1 << 50)
        .expect_err("more than any machine has");
    assert!(
        error.to_string().contains("bytes of memory are available"),
        "{error}"
    );
    let error = world.alloc::<f64>(0).expect_err("nothing");
    assert!(error.to_string().contains("`len` is 0"), "{error}");
}
