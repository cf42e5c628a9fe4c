//! Every kind of buffer, and every size.

use std::{sync::Arc, time::Duration};

use ripstop::{
    Collectives as _, Comm, ErrorKind, Max, Result, Sum, Wire,
    buffer::{BufExt, Layout, RegBuf, Static},
};

use crate::{PATHS, SIZES, check::assert_content, content::content, ranks};

#[ripstop::test(ranks = 2)]
async fn every_size_arrives_as_it_was_sent_both_ways_at_once(world: Comm) -> Result<()> {
    let (me, peer) = (world.rank() as u64, 1 - world.rank());
    for len in SIZES {
        let posted = world.recv_into(peer, 1, vec![0xff_u8; len + 3]);
        let sent = world.send(peer, 1, content(me, len));
        let later = world.send(peer, 2, content(me + 2, len));
        let (got, status) = posted.await?;
        assert_content(&got, 1 - me, len);
        assert_eq!(status.len, len);
        assert_content(&world.recv(peer, 2).await?.0, 3 - me, len);
        assert_content(&sent.await?, me, len);
        assert_content(&later.await?, me + 2, len);
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn every_owned_buffer_can_be_sent_and_comes_home(world: Comm) -> Result<()> {
    static STATIC: [u16; 3] = [7, 8, 9];
    if world.rank() == 0 {
        for len in PATHS {
            let vec = content(1, len);
            let shared: Arc<[u8]> = vec.clone().into();
            let two = (
                world.send(1, 1, Arc::clone(&shared)),
                world.send(1, 1, shared),
            );
            assert_content(
                &world.send(1, 1, vec.clone().into_boxed_slice()).await?,
                1,
                len,
            );
            let whole = [vec![0; 5], vec.clone(), vec![0; 4]].concat();
            let part = world.send(1, 1, whole.part(5..5 + len)).await?;
            assert_content(&part.into_inner()[5..5 + len], 1, len);
            assert_content(&world.send(1, 1, vec).await?, 1, len);
            assert_eq!(two.0.await?, two.1.await?);
        }
        assert_eq!(world.send(1, 2, [1_i32, 2, 3]).await?, [1, 2, 3]);
        assert_eq!(world.send(1, 2, Static(&STATIC)).await?.0, STATIC);
        assert_eq!(
            world.send(1, 2, [[1.5_f64; 4]; 100]).await?,
            [[1.5; 4]; 100]
        );
    } else {
        for len in PATHS {
            for _ in 0..5 {
                assert_content(&world.recv(0, 1).await?.0, 1, len);
            }
        }
        assert_eq!(world.recv_into(0, 2, [0_i32; 3]).await?.0, [1, 2, 3]);
        assert_eq!(world.recv::<u16>(0, 2).await?.0, STATIC);
        assert_eq!(
            world.recv_into(0, 2, [[0.0_f64; 4]; 100]).await?.0,
            [[1.5; 4]; 100]
        );
    }
    Ok(())
}

/// The type of the buffer is inferred as for any other number.
#[ripstop::test(ranks = 2)]
async fn a_number_is_a_buffer_of_one_element(world: Comm) -> Result<()> {
    let (rank, other) = (world.rank(), 1 - world.rank());
    let inbox = world.recv_into(other, 1, 0.0);
    assert_bits([world.send(other, 1, 2.5).await?], [2.5]);
    let (got, status) = inbox.await?;
    assert_bits([got], [2.5]);
    assert_eq!(status.len, 1);
    let half: f64 = world.all_reduce(0.5, Sum).await?;
    let most = world.all_reduce([4.0_f64, 5.0][rank], f64::max).await?;
    let [sum] = world.all_reduce([3.0], Sum).await?;
    assert_bits([half, most, sum], [1.0, 5.0, 6.0]);
    assert_eq!(world.all_reduce(rank as u64, Max).await?, 1);
    Ok(())
}

fn assert_bits<const N: usize>(are: [f64; N], expected: [f64; N]) {
    assert_eq!(are.map(f64::to_bits), expected.map(f64::to_bits));
}

#[ripstop::test(ranks = 2)]
async fn every_owned_buffer_can_be_received_into_and_keeps_what_no_message_reached(
    world: Comm,
) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            for _ in 0..4 {
                world.send(1, 1, content(1, len)).await?;
            }
        } else {
            let (vec, status) = world.recv_into(0, 1, Vec::with_capacity(len + 9)).await?;
            assert_content(&vec, 1, len);
            assert_eq!(status.len, len);
            let (boxed, _) = world
                .recv_into(0, 1, vec![5_u8; len + 2].into_boxed_slice())
                .await?;
            assert_content(&boxed[..len], 1, len);
            assert_eq!(boxed[len..], [5, 5]);
            let part = vec![6_u8; len + 8].part(3..len + 3);
            let whole = world.recv_into(0, 1, part).await?.0.into_inner();
            assert_content(&whole[3..len + 3], 1, len);
            assert_eq!((&whole[..3], &whole[len + 3..]), (&[6; 3][..], &[6; 5][..]));
            let (vec, _) = world.recv_into(0, 1, vec![1_u8; len + 1]).await?;
            assert_content(&vec, 1, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_column_of_a_matrix_arrives_in_another_matrix(world: Comm) -> Result<()> {
    for n in [1_usize, 3, 12, 700] {
        let column = |at| Layout {
            offset: at,
            block: 1,
            stride: n,
            count: n,
        };
        if world.rank() == 0 {
            let matrix: Vec<u32> = (0..n * n).map(|at| at as u32).collect();
            let home = world
                .send(1, 1, matrix.clone().strided(column(n - 1)))
                .await?;
            assert_eq!(home.into_inner(), matrix);
        } else {
            let (strided, status) = world
                .recv_into(0, 1, vec![0_u32; n * n].strided(column(0)))
                .await?;
            assert_eq!(status.len, n);
            let matrix = strided.into_inner();
            for (at, value) in matrix.into_iter().enumerate() {
                let expected = if at % n == 0 { at + n - 1 } else { 0 };
                assert_eq!(value as usize, expected, "element {at} of {n} x {n}");
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C)]
struct Particle {
    at: [f64; 3],
    mass: f32,
    charge: i32,
}

#[ripstop::test(ranks = 2)]
async fn structs_travel(world: Comm) -> Result<()> {
    let particle = |at: usize| Particle {
        at: [at as f64, 0.5, -1.0],
        mass: 2.0,
        charge: -(at as i32),
    };
    for len in [0, 1, 5, 10_000] {
        let particles: Vec<_> = (0..len).map(particle).collect();
        if world.rank() == 0 {
            assert_eq!(world.send(1, 1, particles.clone()).await?, particles);
        } else {
            let (got, status) = world.recv::<Particle>(0, 1).await?;
            assert_eq!((got, status.len), (particles, len));
        }
    }
    Ok(())
}

#[test]
fn parts_of_a_registered_buffer_are_sent_and_received_at_the_same_time() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let (me, peer) = (world.rank() as u64, 1 - world.rank());
        let lens = [1, 96, 5000, 100_000, 700_000];
        let whole: RegBuf<u8> = runtime.alloc(lens.iter().sum()).expect("memory");
        let mut out: RegBuf<u8> = runtime.alloc(lens.iter().sum()).expect("memory");
        let mut at = 0;
        for len in lens {
            out[at..at + len].copy_from_slice(&content(me, len));
            at += len;
        }
        runtime.block_on(async {
            let inboxes: Vec<_> = (0..)
                .zip(whole.split_into(&lens))
                .map(|(tag, part)| world.recv_into(peer, tag, part))
                .collect();
            let outboxes: Vec<_> = (0..)
                .zip(out.split_into(&lens))
                .map(|(tag, part)| world.send(peer, tag, part))
                .collect();
            let mut joined: Option<RegBuf<u8>> = None;
            for (inbox, len) in inboxes.into_iter().zip(lens) {
                let (part, status) = inbox.await.expect("a message");
                assert_content(&part, 1 - me, len);
                assert_eq!(status.len, len);
                joined = Some(match joined {
                    None => part,
                    Some(before) => before.join(part).expect("neighbors"),
                });
            }
            assert_eq!(joined.expect("parts").len(), lens.iter().sum());
            for (outbox, len) in outboxes.into_iter().zip(lens) {
                assert_content(&outbox.await.expect("sent"), me, len);
            }
        });
        runtime.close().expect("a good end");
    });
}

#[ripstop::test(ranks = 2)]
async fn borrowed_data_is_sent_by_copy(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            let mut data = content(1, len);
            world.send_copy(1, 1, &data).await?;
            data.fill(0);
            let data = content(2, len);
            if !world.try_send_copy(1, 1, &data)? {
                assert!(len > 0, "an empty message needs no more room than there is");
                world.send(1, 1, data).await?;
            }
        } else {
            assert_content(&world.recv(0, 1).await?.0, 1, len);
            assert_content(&world.recv(0, 1).await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_copy_is_on_its_way_before_it_is_awaited_and_its_slice_is_free(
    world: Comm,
) -> Result<()> {
    let (me, peer) = (world.rank() as u64, 1 - world.rank());
    for len in PATHS {
        let mut data = content(me, len);
        let sent = world.send_copy(peer, 1, &data);
        data.fill(0);
        // After a drop it also completes.
        drop(world.send_copy(peer, 2, &content(me + 2, len)));
        // Both ranks receive before they await their sends.
        assert_content(&world.recv(peer, 1).await?.0, 1 - me, len);
        assert_content(&world.recv(peer, 2).await?.0, 3 - me, len);
        sent.await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_long_copy_that_is_not_received_gives_up_at_its_limit(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        let data = content(0, 700_000);
        let sent = world.send_copy(1, 1, &data);
        assert!(!sent.is_done());
        let error = sent.timeout(Duration::from_millis(5)).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
        let error = world.send_copy(7, 1, &data).await.unwrap_err();
        assert!(error.to_string().contains("`to` is rank 7"), "{error}");
        world.send(1, 2, [1_u8]).await?;
    } else {
        world.recv::<u8>(0, 2).await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_channel_exchanges_the_same_buffers_again_and_again(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    let channel = world.channel::<f64>(peer, 3)?;
    let (mut out, mut inbox) = (vec![0.0; 500], [0.0; 500]);
    for round in 0..300 {
        out.fill(f64::from(round));
        let receiving = channel.recv_into(inbox);
        out = channel.send(out).await?;
        inbox = receiving.await?.0;
        assert_eq!(inbox, [f64::from(round); 500]);
    }
    Ok(())
}
