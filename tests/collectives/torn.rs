//! The first rail is cut off during collectives by task lists, over the software Portals, with ranks as processes of `cargo
//! xtask portals`.

use std::{
    env,
    process::{Command, Stdio},
};

use ripstop::{Error, ErrorKind, OpError, Runtime, prelude::*};

use crate::ranks;

const RANKS: u32 = 4;
/// Bytes that leave the first rail of each rank until it is cut off: in the first collectives, and later.
const CUTS: [u64; 6] = [20_000, 50_000, 200_000, 700_000, 1_500_000, 3_000_000];

#[test]
fn collectives_whose_first_rail_is_cut_off_end_on_all_ranks() {
    if env::var("RIPSTOP_FABRIC").as_deref() != Ok("portals") || env::var(CUT).is_ok() {
        return;
    }
    for cut in CUTS {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args([
            "--exact",
            "torn::a_job_whose_first_rail_is_cut_off",
            "--nocapture",
        ]);
        child.env(RAILS, "0,1").env(CUT, format!("{cut},0"));
        let ended = child.stdout(Stdio::null()).status().unwrap();
        assert!(ended.success(), "{CUT}={cut},0 {RAILS}=0,1");
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn a_job_whose_first_rail_is_cut_off() {
    if env::var(CUT).is_err() {
        return;
    }
    ranks::run(
        RANKS,
        &[("RIPSTOP_COLLECTIVES", "lists")],
        |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(until_torn(&world));
        },
    );
}

async fn until_torn(world: &Comm) {
    let (me, size) = (world.rank(), world.size());
    let mut errors = Vec::new();
    for round in 0..ROUNDS {
        let root = round % size;
        let sum = world.all_reduce(vec![1_u64; LONG], Sum);
        let blocks = world.all_to_all(vec![me as u64; size * LONG]);
        let word = world.bcast(root, vec![me as u64; LONG]);
        let sum = home(sum.await, &mut errors);
        let blocks = home(blocks.await, &mut errors);
        let word = home(word.await, &mut errors);
        errors.extend(world.barrier().await.err());
        let (Some(sum), Some(blocks), Some(word)) = (sum, blocks, word) else {
            break;
        };
        assert!(sum.iter().all(|sum| *sum == size as u64));
        assert!(word.iter().all(|word| *word == root as u64));
        for (from, block) in blocks.chunks(LONG).enumerate() {
            assert!(block.iter().all(|word| *word == from as u64));
        }
    }
    assert!(!errors.is_empty(), "nothing was cut off");
    assert!(errors.iter().all(is_known), "{errors:?}");
    // Messages continue by the other rail. Only a rank that has not answered a count is lost.
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let inbox = world.recv_into(before, 1, vec![0_u64; LONG]);
    let mut losses = Vec::new();
    home(
        world.send(next, 1, vec![me as u64; LONG]).await,
        &mut losses,
    );
    if let Some((got, _)) = home(inbox.await, &mut losses) {
        assert!(got.iter().all(|word| *word == before as u64));
    }
    let is_loss = |error: &Error| matches!(error.kind, ErrorKind::PeerFailed { .. });
    assert!(losses.iter().all(is_loss), "{losses:?}");
}

/// Checks the error of a collective whose lists failed. A rank that had nothing more to do may have finished.
fn is_known(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Transport(_)
            | ErrorKind::Aborted { .. }
            | ErrorKind::Revoked
            | ErrorKind::PeerFailed { .. }
            | ErrorKind::PeerFinished { .. }
    )
}

/// The result of a failed collective is not checked.
fn home<T, B>(ended: Result<T, OpError<B>>, errors: &mut Vec<Error>) -> Option<T> {
    let failed = ended.map_err(|failed| failed.error);
    failed.map_err(|error| errors.push(error)).ok()
}

const RAILS: &str = "RIPSTOP_PORTALS_IFACES";
const CUT: &str = "RIPSTOP_PORTALS_CUT";
/// Numbers in a block.
const LONG: usize = 2000;
/// Rounds: enough for the latest of the cuts.
const ROUNDS: usize = 200;
