//! Messages and accesses to windows that take parts of arrays.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ripstop::{
    Comm, ErrorKind, Result, Window,
    buffer::{BufExt, Layout},
};

use crate::panics;

#[ripstop::test(ranks = 2)]
async fn parts_of_one_array_are_in_flight_while_it_is_used(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    // Of 8 and of 64 KiB: the second goes by rendezvous.
    for n in [8, 96] {
        let shape = [n, n, n];
        let mut array: Vec<_> = (0..n * n * n).map(|at| 2 * at + me).collect();
        let part = |x: usize| Layout::subarray(&shape, &[0..n, 1..n - 1, x..x + 1]);
        let inbox = [0, n - 1].map(|x| world.recv_packed(other, x as u32, part(x)));
        let sent = [1, n - 2].map(|x| {
            let tag = if x == 1 { n - 1 } else { 0 };
            world.send_packed(other, tag as u32, &array, part(x))
        });
        array[n + 1] = 0;
        for column in inbox {
            let status = column.await?.unpack_into(&mut array);
            assert_eq!((status.source, status.len), (other, n * (n - 2)));
        }
        for column in sent {
            assert_eq!(column.await?.len(), n * (n - 2));
        }
        for (at, &got) in array.iter().enumerate() {
            let (x, y) = (at % n, at / n % n);
            let inside = (1..n - 1).contains(&y);
            let expected = match x {
                _ if at == n + 1 => 0,
                0 if inside => 2 * (at + n - 2) + other,
                _ if x == n - 1 && inside => 2 * (at - (n - 2)) + other,
                _ => 2 * at + me,
            };
            assert_eq!(got, expected, "element {at} of {n}³");
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_message_of_another_length_is_too_long_or_fills_the_first_elements(
    world: Comm,
) -> Result<()> {
    let other = 1 - world.rank();
    let column = |rows| Layout {
        offset: 0,
        block: 1,
        stride: 2,
        count: rows,
    };
    let array: Vec<u32> = (10..18).collect();
    world.send_packed(other, 1, &array, column(4)).await?;
    world.send_packed(other, 2, &array, column(2)).await?;
    world.send_packed(other, 3, &array, column(0)).await?;

    let failed = world
        .recv_packed_in::<u32>(other, 1, column(3), vec![9; 100])
        .await;
    let failed = failed.expect_err("it is too long");
    let text = failed.error.to_string();
    assert!(
        matches!(failed.error.kind, ErrorKind::Truncated { sent: 4, room: 3 }),
        "{text}"
    );
    assert!(text.contains(file!()), "{text}");
    let kept = world
        .recv_packed_in(other, 1, column(4), failed.buf)
        .await?;
    assert_eq!(kept.packed(), [10, 12, 14, 16]);

    let mut into = vec![0; 8];
    let short = world
        .recv_packed_in(other, 2, column(4), kept.into_scratch())
        .await?;
    assert_eq!(
        (short.status().len, short.unpack_into(&mut into).len),
        (2, 2)
    );
    assert_eq!(into, [10, 0, 12, 0, 0, 0, 0, 0]);
    let refused = catch_unwind(AssertUnwindSafe(|| short.unpack_into(&mut into[..6])));
    let text = refused
        .expect_err("it leaves the array")
        .downcast::<String>();
    let text = text.map(|text| *text).unwrap_or_default();
    assert!(text.contains("leaves `array` of 6 elements"), "{text}");

    let empty = world
        .recv_packed_in(other, 3, column(0), vec![1; 5])
        .await?;
    assert_eq!(empty.unpack_into(&mut into).len, 0);
    let wrong = catch_unwind(AssertUnwindSafe(|| {
        world.send_packed(other, 4, &array, column(5)).detach();
    }));
    assert!(wrong.is_err(), "nothing is sent");
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn packed_messages_of_no_rank_leave_the_array_as_it_is(world: Comm) -> Result<()> {
    let column = Layout {
        offset: 0,
        block: 1,
        stride: 2,
        count: 3,
    };
    let mut array = [1_u32, 2, 3, 4, 5];
    let sent = world.send_packed(None, 7, &array, column).await?;
    assert_eq!(sent[..], [1, 3, 5]);
    for scratch in [Vec::new(), vec![9; 3], vec![9; 8]] {
        let message = world.recv_packed_in(None, 7, column, scratch).await?;
        assert!(message.packed().is_empty(), "{message:?}");
        assert_eq!(message.unpack_into(&mut array).len, 0);
        assert_eq!(array, [1, 2, 3, 4, 5]);
    }
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn blocks_that_overlap_or_fit_no_memory_are_refused_before_a_message_is_taken(
    world: Comm,
) -> Result<()> {
    let overlapping = Layout {
        offset: 0,
        block: 2,
        stride: 1,
        count: 2,
    };
    world.send(0, 7, [1_u8, 2]).await?;
    let at = line!() + 1;
    let (text, line) = panics(file!(), || drop(world.recv_packed::<u8>(0, 7, overlapping)));
    assert!(
        text.starts_with("recv_packed: ") && text.contains("overlap"),
        "{text}"
    );
    assert_eq!(line, at);
    let endless = Layout {
        offset: 0,
        block: usize::MAX,
        stride: usize::MAX,
        count: 1,
    };
    let at = line!() + 1;
    let (text, line) = panics(file!(), || drop(world.recv_packed::<u8>(0, 7, endless)));
    assert!(text.starts_with("recv_packed: no room for the"), "{text}");
    assert_eq!(line, at);
    assert_eq!(world.recv::<u8>(0, 7).await?.0, [1, 2]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_face_is_put_to_and_got_from_a_window_with_a_layout_on_both_sides(
    world: Comm,
) -> Result<()> {
    let (me, other) = (world.rank() as u32, 1 - world.rank());
    let shape = [4, 4, 5];
    let face = |y: usize| Layout::subarray(&shape, &[1..3, y..y + 1, 1..4]);
    let array: Vec<u32> = (0..80).map(|at| 100 * me + at).collect();
    let mut window = Window::<u32>::allocate(&world, 80).await?;
    let epoch = window.fence().await?;
    let put = epoch.put_strided(other, face(0), array.strided(face(2)));
    let array = put.await?.into_inner();
    let epoch = epoch.fence().await?;
    let got = epoch.get_strided(other, face(0), vec![0; 80].strided(face(3)));
    let got = got.await?.into_inner();
    let refused = epoch.put_strided(other, face(0), [0; 5]).await;
    assert!(refused.is_err());
    let endless = Layout {
        offset: 0,
        block: 1,
        stride: usize::MAX,
        count: 3,
    };
    assert!(epoch.put_strided(other, endless, [0; 3]).await.is_err());
    let mine = epoch.end().await?;
    let mut put_here = vec![0; 80];
    let mut got_here = vec![0; 80];
    for (z, x) in [1, 2].into_iter().flat_map(|z| (1..4).map(move |x| (z, x))) {
        let at = |y: usize| (z * 4 + y) * 5 + x;
        put_here[at(0)] = 100 * (1 - me) + at(2) as u32;
        got_here[at(3)] = array[at(2)];
    }
    assert_eq!(mine, put_here);
    assert_eq!(got, got_here);
    window.free().await
}
