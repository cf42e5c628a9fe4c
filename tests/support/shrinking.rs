//! A job that loses one rank after the other, at any moment, and goes on with the rest. Part of `tests/failures`.

use ripstop::{Collectives, Comm, Error, ErrorKind, OpError, Result, Sum};

/// Elements of a long block, whose messages move in pieces.
const LONG: usize = 20_000;

/// Rounds of the last two ranks.
const ROUNDS: usize = 100;

/// Collectives and messages of all lengths, in a communicator that shrinks whenever one fails, until two ranks are left. Calls
/// `ready` once for each communicator, when this rank may be killed.
pub(crate) async fn shrink(world: &Comm, ready: fn()) -> Result<()> {
    let mut failures = world.failures();
    let mut comm = world.clone();
    while comm.size() > 2 {
        for error in until_one_dies(&comm, ready).await {
            let known = matches!(
                error.kind,
                ErrorKind::PeerFailed { .. } | ErrorKind::Revoked
            );
            assert!(known, "{error}");
        }
        comm.revoke();
        assert!(comm.agree(true).await?);
        let smaller = comm.shrink().await?;
        assert_eq!(smaller.size(), comm.size() - 1);
        comm = smaller;
    }
    for number in 0..ROUNDS {
        let ended = round(&comm, number).await;
        ended.map_err(|mut errors| errors.swap_remove(0))?;
    }
    let (one, other) = (failures.next().await, failures.next().await);
    let me = Some(world.rank());
    assert!(
        one != other && one != me && other != me,
        "{one:?}, {other:?}"
    );
    Ok(())
}

async fn until_one_dies(comm: &Comm, ready: fn()) -> Vec<Error> {
    for number in 0.. {
        if number == 3 {
            ready();
        }
        if let Err(errors) = round(comm, number).await {
            return errors;
        }
    }
    unreachable!("a rank dies before")
}

/// Checks that all buffers return, with correct contents unless there was an error.
async fn round(comm: &Comm, number: usize) -> Result<(), Vec<Error>> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut errors = Vec::new();
    let short = comm.all_reduce([rank + 1], Sum);
    let long = comm.all_reduce(vec![1_u64; LONG], Sum);
    let blocks = comm.all_to_all_into(vec![rank as u64; size * LONG], vec![0_u64; size * LONG]);
    let inbox = comm.recv_into(from, 1, vec![0_usize; LONG]);
    let sent = comm.send(next, 1, vec![number; LONG]);
    // A message that comes only if no rank fails. If one does, others wake the rank that waits for it.
    let last = comm.recv_into(from, 2, [0_usize]);
    let [sum] = home(short.await, &mut errors);
    let long = home(long.await, &mut errors);
    let (_, blocks) = home(blocks.await, &mut errors);
    give_up(comm, &errors);
    home(sent.await, &mut errors);
    let got = home(inbox.await.map(|(got, _)| got), &mut errors);
    give_up(comm, &errors);
    if errors.is_empty() {
        home(comm.send(next, 2, [number]).await, &mut errors);
    }
    let [same] = home(last.await.map(|(got, _)| got), &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    assert_eq!(sum, size * (size + 1) / 2);
    assert!(long.iter().all(|&sum| sum == size as u64));
    let block = |of: usize| &blocks[of * LONG..][..LONG];
    assert!((0..size).all(|of| block(of).iter().all(|&word| word == of as u64)));
    assert!(same == got[0] && got.iter().all(|&word| word == same));
    Ok(())
}

/// The other ranks may wait for messages that this rank does not send any more.
fn give_up(comm: &Comm, errors: &[Error]) {
    if !errors.is_empty() {
        comm.revoke();
    }
}

fn home<T>(ended: Result<T, OpError<T>>, errors: &mut Vec<Error>) -> T {
    ended.unwrap_or_else(|OpError { error, buf, .. }| {
        errors.push(error);
        buf
    })
}
