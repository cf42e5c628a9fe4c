//! Receives that are dropped, canceled, timed out and refused at random moments.

use std::time::Duration;

use ripstop::{Comm, ErrorKind, OpError, RecvOp, Result};

use crate::{
    content::{Random, seed},
    turns::turn,
};

const MESSAGES: u64 = 10_000;

/// The first word identifies the message; the length depends on it.
fn words_of(number: u64, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed ^ number);
    let len = match random.below(40) {
        0 => random.below(30_000),
        1..=4 => random.below(1200),
        _ => random.below(20),
    };
    vec![number; len + 1]
}

#[ripstop::test(ranks = 2)]
async fn no_race_loses_repeats_or_reorders_a_message(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        let seed = seed("no_race_loses_repeats_or_reorders_a_message");
        world.send(1, 0, [seed]).await?;
        let mut random = Random::new(seed);
        for number in 0..MESSAGES {
            let send = world.send(1, 1, words_of(number, seed));
            match random.below(50) {
                0 => drop(send.await?),
                1..=10 => turn().await,
                _ => send.detach(),
            }
        }
        return Ok(());
    }
    let ([seed], _) = world.recv_into(0, 0, [0_u64]).await?;
    let mut random = Random::new(!seed);
    let mut next = 0;
    while next < MESSAGES {
        if let Some(words) = attempt(&world, &mut random).await? {
            assert_eq!(words.first(), Some(&next), "seed {seed}");
            assert!(
                words == words_of(next, seed),
                "content of message {next}, seed {seed}"
            );
            next += 1;
        }
    }
    assert!(
        world.recv::<u64>(0, 1).cancel().await.is_ok(),
        "more messages than were sent, seed {seed}"
    );
    Ok(())
}

async fn turns(count: usize) {
    for _ in 0..count {
        turn().await;
    }
}

/// Tries to receive the next message, in one of many ways.
async fn attempt(world: &Comm, random: &mut Random) -> Result<Option<Vec<u64>>> {
    let patience = random.below(4);
    let op = world.recv::<u64>(0, 1);
    Ok(match random.below(10) {
        0 => {
            turns(patience).await;
            None
        }
        1 | 2 => {
            tokio::select! {
                biased;
                message = op => Some(message?.0),
                () = turns(patience) => None,
            }
        }
        3 => {
            turns(patience).await;
            op.cancel().await.err().map(|(words, _)| words)
        }
        4 => or_late(
            op.timeout(Duration::from_micros(random.below(300) as u64))
                .await,
        )?,
        5 => {
            // Two receives may have matched the next two messages, which go back in either order.
            let second = world.recv::<u64>(0, 1);
            turns(patience).await;
            let (early, late) = if random.below(2) == 0 {
                (op, second)
            } else {
                (second, op)
            };
            drop(early);
            turns(patience / 2).await;
            drop(late);
            None
        }
        6 => {
            drop(op);
            let message = world.probe(0, 1).await?;
            turns(patience).await;
            if patience == 0 {
                None
            } else {
                Some(message.recv().await?.0)
            }
        }
        7 => {
            drop(op);
            or_refused(world.recv_into(0, 1, vec![0_u64; 8 * patience + 1])).await?
        }
        8 => {
            drop(op);
            let wrong = world.recv::<f32>(0, 1);
            turns(patience).await;
            assert!(patience > 0 || wrong.await.is_err());
            None
        }
        _ => Some(op.await?.0),
    })
}

fn or_late<T>(
    outcome: std::result::Result<(Vec<u64>, T), OpError<Vec<u64>>>,
) -> Result<Option<Vec<u64>>> {
    match outcome {
        Ok((words, _)) => Ok(Some(words)),
        Err(late) if matches!(late.error.kind, ErrorKind::TimedOut) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

async fn or_refused(op: RecvOp<Vec<u64>>) -> Result<Option<Vec<u64>>> {
    match op.await {
        Ok((words, _)) => Ok(Some(words)),
        Err(refused) if matches!(refused.error.kind, ErrorKind::Truncated { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}
