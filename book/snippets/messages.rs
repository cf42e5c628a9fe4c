//! Snippets of the chapter on sending and receiving.

use ripstop::{
    Collectives, Comm, Result, Source, Sum, Tag, Wire,
    buffer::{BufExt, Layout},
};

#[ripstop::test(ranks = 3)]
async fn a_ring(world: Comm) -> Result<()> {
    // ANCHOR: ring
    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);

    let inbox = world.recv::<usize>(left, 7);
    let mine = world.send(right, 7, vec![rank; 1024]).await?;
    let (from_left, status) = inbox.await?;
    // ANCHOR_END: ring
    assert_eq!((mine[0], from_left[0], status.len), (rank, left, 1024));
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn a_shift_along_a_line_of_ranks(world: Comm) -> Result<()> {
    let (mut first, last) = (-1.0, world.rank() as f64);
    // ANCHOR: line
    let line = world.cart(&[world.size()], &[false]).await?;
    let (left, right) = line.shift(0, 1); // `None` at the ends

    let (_sent, from_left, status) = line.sendrecv_into(right, left, 7, last, first).await?;
    first = from_left; // as it was on rank 0, where `status.len` is 0
    // ANCHOR_END: line
    let expected = if world.rank() == 0 {
        (-1.0, 0)
    } else {
        (last - 1.0, 1)
    };
    assert_eq!((first, status.len), expected);
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn rows_and_columns_of_a_grid(world: Comm) -> Result<()> {
    // ANCHOR: grid
    let grid = world.cart(&[2, 2], &[true, false]).await?;
    let row = grid.sub(&[false, true]).await?; // ranks with the same first coordinate
    let sum = row.all_reduce(grid.rank(), Sum).await?;

    let halves = world.split(world.rank() / 2, 0).await?; // one for each color
    let in_world = halves.translate(0, &world); // the rank there of rank 0 here
    // ANCHOR_END: grid
    assert_eq!(sum, [1, 1, 5, 5][world.rank()]);
    assert_eq!(in_world, Some(world.rank() / 2 * 2));

    // ANCHOR: create
    let writers = [0, 3];
    if writers.contains(&world.rank()) {
        let writers = world.create(&writers).await?; // the other ranks call nothing
        writers.barrier().await?;
    }
    // ANCHOR_END: create
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn any_rank_and_any_tag(world: Comm) -> Result<()> {
    // ANCHOR: any
    if world.rank() == 0 {
        for _ in 1..world.size() {
            let (text, status) = world.recv::<u8>(Source::Any, Tag::Any).await?;
            println!("{} bytes from rank {}", text.len(), status.source);
        }
    } else {
        world.send(0, 1, b"hello".to_vec()).await?;
    }
    // ANCHOR_END: any
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn into_a_buffer(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    world.send(peer, 3, [1.0_f64; 2]).detach();
    // ANCHOR: into
    let room = vec![0.0; 1024];
    let (values, status) = world.recv_into(peer, 3, room).await?;
    assert_eq!(values.len(), status.len);
    // ANCHOR_END: into
    assert_eq!(values, [1.0, 1.0]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn parts_of_a_buffer(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // ANCHOR: parts
    const COLUMNS: usize = 4;
    let matrix: Vec<u32> = (0..12).collect(); // 3 rows of 4

    let row = matrix.part(COLUMNS..2 * COLUMNS);
    let matrix = world.send(peer, 0, row).await?.into_inner();

    let column = Layout {
        offset: 1,
        block: 1,
        stride: COLUMNS,
        count: 3,
    };
    let matrix = world
        .send(peer, 1, matrix.strided(column))
        .await?
        .into_inner();
    // ANCHOR_END: parts
    assert_eq!(matrix.len(), 12);
    assert_eq!(world.recv::<u32>(peer, 0).await?.0, [4, 5, 6, 7]);
    assert_eq!(world.recv::<u32>(peer, 1).await?.0, [1, 5, 9]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn borrowed_data_is_copied(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    let samples = [1_i32, 2, 3, 4];
    // ANCHOR: copy
    let (few, rest) = samples.split_at(2);
    world.send_copy(peer, 4, few).await?;
    world.send_copy(peer, 5, rest).await?;
    // ANCHOR_END: copy
    assert_eq!(world.recv::<i32>(peer, 4).await?.0, [1, 2]);
    assert_eq!(world.recv::<i32>(peer, 5).await?.0, [3, 4]);
    Ok(())
}

// ANCHOR: wire
#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C)]
struct Particle {
    position: [f64; 3],
    id: u64,
}
// ANCHOR_END: wire

#[ripstop::test(ranks = 2)]
async fn a_struct_of_yours(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    let particle = Particle {
        position: [0.5; 3],
        id: 7,
    };
    world.send(peer, 0, vec![particle]).detach();
    assert_eq!(world.recv::<Particle>(peer, 0).await?.0, [particle]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn look_first(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    world.send(peer, 9, [2.5_f32; 3]).detach();
    // ANCHOR: probe
    let message = world.probe(peer, Tag::Any).await?;
    println!("{} bytes with tag {}", message.bytes(), message.tag());
    let (values, _) = message.recv::<f32>().await?;
    // ANCHOR_END: probe
    assert_eq!(values, [2.5; 3]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_channel_is_made_once(world: Comm) -> Result<()> {
    let neighbor = 1 - world.rank();
    let mut mine = world.rank() as f64;
    // ANCHOR: channel
    let channel = world.channel::<f64>(neighbor, 7)?; // for sends and for receives
    let mut ghost = 0.0;
    for _step in 0..10 {
        let inbox = channel.recv_into(ghost);
        channel.send(mine).await?;
        (ghost, _) = inbox.await?;
        mine = 0.5 * (mine + ghost);
    }
    // ANCHOR_END: channel
    assert_eq!(mine, 0.5);
    Ok(())
}
