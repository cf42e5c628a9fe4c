//! Errors: their texts, that nothing is lost, and that the correct call still works afterwards.

#![expect(clippy::print_stdout, reason = "seeds help to reproduce a failure")]

#[path = "support/check.rs"]
mod check;
#[path = "support/content.rs"]
mod content;
#[path = "support/every_call.rs"]
mod every_call;

use ripstop::{Collectives, Comm, ErrorKind, Result, Source, Tag, Wire};

use check::assert_content;
use content::{Random, content, seed};

const PATHS: [usize; 6] = [8, 96, 2000, 8192, 100_000, 700_000];

/// Each of these must be in the text.
#[track_caller]
fn says(error: &impl std::fmt::Display, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[ripstop::test(ranks = 2)]
async fn a_message_that_is_too_long_says_so_and_stays(world: Comm) -> Result<()> {
    for (len, posted) in PATHS
        .into_iter()
        .flat_map(|len| [(len, true), (len, false)])
    {
        if world.rank() == 0 {
            if posted {
                world.recv_into(1, 9, [0_u8; 0]).await?;
            }
            let first = world.send(1, 7, content(1, len));
            world.send(1, 7, content(2, len)).await?;
            first.await?;
        } else {
            let short = world.recv_into(Source::Any, 7, vec![3_u8; len - 1].into_boxed_slice());
            if posted {
                world.send(0, 9, [0_u8; 0]).await?;
            }
            let (error, buf) = short.await.expect_err("too long").into_parts();
            assert!(
                matches!(error.kind, ErrorKind::Truncated { sent, room } if sent == len && room == len - 1),
                "{error}"
            );
            says(
                &error,
                &[
                    "rank 0",
                    "tag 7",
                    ", at tests/errors.rs:",
                    &format!("{len} elements"),
                    &format!("{}", len - 1),
                ],
            );
            assert!(buf.iter().all(|&byte| byte == 3), "the buffer as it was");
            assert_content(&world.recv_into(0, 7, vec![0_u8; len]).await?.0, 1, len);
            assert_content(&world.recv(0, 7).await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn counts_in_errors_are_elements(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        world.send(1, 7, [[1.0_f64; 3]; 5]).await?;
        return Ok(());
    }
    let error = world
        .recv_into(0, 7, [[0.0_f64; 3]; 4])
        .await
        .expect_err("five")
        .error;
    assert!(
        matches!(error.kind, ErrorKind::Truncated { sent: 5, room: 4 }),
        "{error}"
    );
    says(
        &error,
        &[
            "rank 0",
            "tag 7",
            ", at tests/errors.rs:",
            "5 elements",
            "4",
            "receive it again",
        ],
    );
    assert_eq!(world.recv_into(0, 7, [[0.0_f64; 3]; 6]).await?.1.len, 5);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_message_of_another_type_says_both_types_and_stays(world: Comm) -> Result<()> {
    for (len, posted) in PATHS
        .into_iter()
        .flat_map(|len| [(len, true), (len, false)])
    {
        let values: Vec<f64> = (0..len).map(|at| at as f64).collect();
        if world.rank() == 0 {
            if posted {
                world.recv_into(1, 9, [0_u8; 0]).await?;
            }
            world.send(1, 7, values).await?;
        } else {
            let wrong = world.recv::<f32>(Source::Any, Tag::Any);
            if posted {
                world.send(0, 9, [0_u8; 0]).await?;
            }
            let (error, buf) = wrong.await.expect_err("another type").into_parts();
            let right = matches!(
                error.kind,
                ErrorKind::TypeMismatch { sent, expected } if (sent, expected) == (f64::SIG, f32::SIG)
            );
            assert!(right && buf.is_empty(), "{error}");
            says(
                &error,
                &[
                    "rank 0",
                    "tag 7",
                    ", at tests/errors.rs:",
                    "f64",
                    "f32",
                    "kept",
                ],
            );
            assert!(world.recv::<f64>(Source::Any, Tag::Any).await?.0 == values);
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C)]
struct Pair {
    left: f32,
    right: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C)]
struct OtherPair {
    left: f32,
    right: i32,
}

#[ripstop::test(ranks = 2)]
async fn structs_of_other_fields_are_other_types(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        world
            .send(
                1,
                7,
                [Pair {
                    left: 1.0,
                    right: 2.0,
                }],
            )
            .await?;
        return Ok(());
    }
    for error in [
        world
            .recv::<OtherPair>(0, 7)
            .await
            .expect_err("another struct")
            .error,
        world.recv::<f32>(0, 7).await.expect_err("a struct").error,
        world
            .recv::<[f32; 2]>(0, 7)
            .await
            .expect_err("a struct")
            .error,
        world.recv::<u8>(0, 7).await.expect_err("not bytes").error,
    ] {
        assert!(
            matches!(error.kind, ErrorKind::TypeMismatch { .. }),
            "{error}"
        );
    }
    assert_eq!(
        world.recv::<Pair>(0, 7).await?.0,
        [Pair {
            left: 1.0,
            right: 2.0
        }]
    );
    Ok(())
}

/// More of them than a stack has room for, too.
#[ripstop::test(ranks = 2)]
async fn one_message_refuses_any_number_of_posted_receives(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        world.recv_into(1, 9, [0_u8; 0]).await?;
        world.send(1, 7, content(1, 50)).await?;
        return Ok(());
    }
    let wrong: Vec<_> = (0..20_000).map(|_| world.recv::<f64>(0, 7)).collect();
    let right = world.recv::<u8>(0, 7);
    world.send(0, 9, [0_u8; 0]).await?;
    assert_content(&right.await?.0, 1, 50);
    for op in wrong {
        let error = op.await.expect_err("another type").error;
        assert!(
            matches!(error.kind, ErrorKind::TypeMismatch { .. }),
            "{error}"
        );
    }
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn a_rank_out_of_range_names_argument_value_and_range(world: Comm) -> Result<()> {
    let words = |name: &'static str| [name, "rank 3", ", at tests/errors.rs:", "0..3"];
    let (error, buf) = world
        .send(3, 1, vec![1_u8, 2])
        .await
        .expect_err("no such rank")
        .into_parts();
    assert_eq!(buf, [1, 2]);
    assert!(
        matches!(error.kind, ErrorKind::InvalidArgument(_)),
        "{error}"
    );
    says(&error, &words("`to`"));
    says(
        &world
            .send_synchronous(3, 1, [0_u8])
            .await
            .expect_err("no such rank"),
        &words("`to`"),
    );
    says(
        &world
            .send_copy(3, 1, &[0_u8])
            .await
            .expect_err("no such rank"),
        &words("`to`"),
    );
    says(
        &world
            .try_send_copy(3, 1, &[0_u8])
            .expect_err("no such rank"),
        &words("`to`"),
    );
    let (error, buf) = world
        .recv_into(3, 1, [5_u8; 2])
        .await
        .expect_err("no such rank")
        .into_parts();
    assert_eq!(buf, [5; 2]);
    says(&error, &words("`from`"));
    says(
        &world.recv::<u8>(3, 1).await.expect_err("no such rank"),
        &words("`from`"),
    );
    says(
        &world.probe(3, 1).await.expect_err("no such rank"),
        &words("`from`"),
    );
    says(
        &world.channel::<u8>(3, 1).expect_err("no such rank"),
        &["rank 3", "0..3"],
    );
    // All ranks see this error, and make no more collectives on that communicator.
    let twin = world.dup().await?;
    let error = twin.bcast(3, [1_u8]).await.expect_err("no such rank");
    says(&error, &["`root`", "rank 3", "0..3"]);
    says(
        &world
            .send(usize::MAX, 1, [1_u8])
            .await
            .expect_err("no such rank"),
        &["18446744073709551615"],
    );
    world.barrier().await
}

#[ripstop::test(ranks = 2)]
async fn every_tag_is_a_tag(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    for tag in [0, 1, u32::MAX - 1, u32::MAX] {
        let inbox = world.recv::<u32>(peer, tag);
        world.send(peer, tag, [tag]).await?;
        let (got, status) = inbox.await?;
        assert_eq!((got, status.tag), (vec![tag], tag));
    }
    Ok(())
}

/// Random refusals, in the middle of traffic: every message is received eventually, in order.
#[ripstop::test(ranks = 2)]
async fn refused_messages_are_received_in_order_in_the_end(world: Comm) -> Result<()> {
    const COUNT: u64 = 2000;
    if world.rank() == 0 {
        let mut random = Random::new(seed("refused_messages_are_received_in_order_in_the_end"));
        for number in 0..COUNT {
            let len = 1 + if random.below(20) == 0 {
                random.below(20_000)
            } else {
                random.below(100)
            };
            world.send(1, 7, vec![number; len]).detach();
        }
        return Ok(());
    }
    let mut random = Random::new(7);
    for number in 0..COUNT {
        let mut room = 1;
        let got = loop {
            match random.below(3) {
                0 => drop(world.recv::<i64>(0, 7).await.expect_err("another type")),
                1 => drop(
                    world
                        .recv_into(0, Tag::Any, [0.0_f32])
                        .await
                        .expect_err("another type"),
                ),
                _ => match world.recv_into(0, 7, vec![0_u64; room]).await {
                    Ok((got, _)) => break got,
                    Err(refused) => match refused.error.into_kind() {
                        ErrorKind::Truncated { sent, room: had } if had == room && sent > room => {
                            room = sent
                        }
                        other => panic!("{other}"),
                    },
                },
            }
        };
        assert!(
            got.iter().all(|&word| word == number),
            "message {number}: {:?}",
            got.first()
        );
    }
    Ok(())
}
