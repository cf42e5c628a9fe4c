//! Cables that are pulled during collectives over verbs. If each rank has one device, no rank reaches the other side any more,
//! and either side continues by itself. If each has two, all continue by the other device. Runs only in the virtual machine,
//! which has a command for cables. A rank counts as failed as soon as `RIPSTOP_DETECT_MS` has passed.

#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

use std::{
    collections::BTreeSet,
    process::{Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ripstop::{__private::run_ranks, Error, ErrorKind, OpError, Runtime, prelude::*};
use ripstop_fabric::verbs::DevicePort;

#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_cable_that_stays_pulled_ends_lists_on_all_ranks_and_either_side_goes_on() {
    job(one_device, "lists", BETWEEN, |runtime, torn| {
        runtime.block_on(go_on_by_sides(&runtime.world(), torn));
    });
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_cable_that_stays_pulled_ends_collectives_by_messages_and_either_side_goes_on() {
    job(one_device, "messages", BETWEEN, |runtime, torn| {
        runtime.block_on(go_on_by_sides(&runtime.world(), torn));
    });
}

/// Some ranks exchange control messages by this device, and others by the second; it does not matter which.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn collectives_by_messages_go_on_without_one_of_two_lanes() {
    job(two_devices, "messages", FIRST, |runtime, torn| {
        runtime.block_on(go_on_without(runtime, torn));
    });
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn lists_go_on_without_the_second_of_two_lanes() {
    job(two_devices, "lists", SECOND, |runtime, torn| {
        runtime.block_on(go_on_without(runtime, torn));
    });
}

/// Lists use only the first of several devices.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn without_the_first_of_two_lanes_lists_end_on_all_ranks_and_messages_go_on() {
    job(two_devices, "lists", FIRST, |runtime, torn| {
        runtime.block_on(end_without_the_first(&runtime.world(), torn));
    });
}

/// Starts four ranks on these devices, with a cable so slow that messages are always in flight there when it is pulled.
fn job(
    devices: fn(usize) -> &'static str,
    carried_on_by: &'static str,
    torn: u32,
    rank: fn(&Runtime, u32),
) {
    let _cable = Slow::new(torn);
    run_ranks(RANKS, move |number, builder| {
        let runtime = builder
            .set("RIPSTOP_FABRIC", "verbs")
            .set("RIPSTOP_VERBS_DEVICE", devices(number as usize))
            .set("RIPSTOP_COLLECTIVES", carried_on_by)
            .init()
            .unwrap_or_else(|error| panic!("{error}"));
        rank(&runtime, torn);
        assert_eq!(runtime.counters().list_words > 0, carried_on_by == "lists");
        runtime.close().unwrap();
    });
}

/// Two ranks with a device each, and two that share the one that [`BETWEEN`] cuts off.
fn one_device(rank: usize) -> &'static str {
    ["rxe0", "rxe1", "rxe2", "rxe2"][rank]
}

/// Ranks of even number share two devices, and so do the others, so neighbors are at the two ends of [`FIRST`] and [`SECOND`].
fn two_devices(rank: usize) -> &'static str {
    ["rxe0,rxe1", "rxe2,rxe3"][rank % 2]
}

async fn go_on_by_sides(world: &Comm, torn: u32) {
    let me = world.rank();
    let mut failures = world.failures();
    let mut buffers = until_torn(world, torn).await;
    // The buffers are the application's again, however late messages in flight arrive.
    buffers.iter_mut().for_each(|buffer| buffer.fill(POISON));
    let others = (0..world.size()).filter(|rank| rank / 2 != me / 2);
    for peer in others.clone() {
        let gone = world.recv::<u8>(peer, 1).await.unwrap_err().error;
        assert!(
            matches!(gone.kind, ErrorKind::PeerFailed { rank, .. } if rank == peer),
            "{gone}"
        );
    }
    let failed = [failures.next().await, failures.next().await];
    let failed: BTreeSet<usize> = failed.into_iter().flatten().collect();
    assert!(failed.into_iter().eq(others));
    assert!(world.agree(true).await.unwrap());
    let side = world.shrink().await.unwrap();
    assert_eq!((side.rank(), side.size()), (me % 2, 2));
    if me == 0 {
        // A rank that was declared failed no longer counts, even if it does not know that yet.
        end(cable("plug", torn));
    }
    for number in 0..ROUNDS {
        assert_good(round(&side, number).await);
    }
    let late = |buffer: &Vec<u64>| buffer.iter().any(|word| *word != POISON);
    assert!(!buffers.iter().any(late), "a late put");
}

async fn go_on_without(runtime: &Runtime, torn: u32) {
    let world = runtime.world();
    let mut pulling = None;
    let (mut number, mut after) = (0, 0);
    while after < ROUNDS {
        if number == BEFORE && world.rank() == 0 {
            pulling = Some(cable("pull", torn));
        }
        assert_good(round(&world, number).await);
        let errors = pass_on(&world, 1).await;
        assert!(errors.is_empty(), "{errors:?}");
        let left = u64::from(runtime.counters().lanes_failed > 0);
        let [by_all] = world.all_reduce([left], Min).await.unwrap();
        after += by_all;
        number += 1;
    }
    pulling.into_iter().for_each(end);
}

async fn end_without_the_first(world: &Comm, torn: u32) {
    drop(until_torn(world, torn).await);
    // Only a rank that did not answer a list is lost.
    let losses = pass_on(world, 1).await;
    let is_loss = |error: &Error| matches!(error.kind, ErrorKind::PeerFailed { .. });
    assert!(losses.iter().all(is_loss), "{losses:?}");
    let errors = pass_on(world, 2).await;
    assert!(errors.is_empty(), "{errors:?}");
}

/// Runs rounds of collectives until a pulled cable fails some of them; no later one begins. Returns their buffers.
async fn until_torn(world: &Comm, torn: u32) -> Vec<Vec<u64>> {
    let mut pulling = None;
    for number in 0.. {
        if number == BEFORE && world.rank() == 0 {
            pulling = Some(cable("pull", torn));
        }
        if let Err(Torn { errors, buffers }) = round(world, number).await {
            pulling.into_iter().for_each(end);
            assert!(errors.iter().all(is_clear), "{errors:?}");
            let later = world.barrier().await.unwrap_err();
            assert!(is_clear(&later), "{later}");
            return buffers;
        }
    }
    unreachable!("no cable is pulled")
}

/// Failed collectives, and their returned buffers.
struct Torn {
    errors: Vec<Error>,
    buffers: Vec<Vec<u64>>,
}

/// Runs collectives of short and long blocks at the same time, and checks the results of those that succeed.
async fn round(comm: &Comm, number: u64) -> Result<(), Torn> {
    let (mine, size) = (comm.rank() as u64 + number, comm.size());
    let sums = [1, LONG].map(|len| comm.all_reduce(vec![mine; len], Sum));
    let blocks = [SHORT, LONG].map(|len| {
        let (send, recv) = (vec![mine; size * len], vec![0; size * len]);
        comm.all_to_all_into(send, recv)
    });
    let met = comm.barrier();
    let (mut errors, mut buffers) = (Vec::new(), Vec::new());
    let sum = (0..size as u64).map(|rank| rank + number).sum();
    for sums in sums {
        match sums.await {
            Ok(sums) => assert!(sums.iter().all(|one| *one == sum)),
            Err(OpError { error, buf, .. }) => {
                errors.push(error);
                buffers.push(buf);
            }
        }
    }
    for blocks in blocks {
        match blocks.await {
            Ok((_, blocks)) => {
                let rows = blocks.chunks(blocks.len() / size).zip(number..);
                assert!({ rows }.all(|(row, of)| row.iter().all(|word| *word == of)));
            }
            Err(OpError { error, buf, .. }) => {
                errors.push(error);
                buffers.extend(<[_; 2]>::from(buf));
            }
        }
    }
    errors.extend(met.await.err());
    match errors[..] {
        [] => Ok(()),
        _ => Err(Torn { errors, buffers }),
    }
}

#[track_caller]
fn assert_good(ended: Result<(), Torn>) {
    if let Err(torn) = ended {
        panic!("{:?}", torn.errors);
    }
}

/// Sends a long message from each rank to the rank `distance` ahead.
async fn pass_on(comm: &Comm, distance: usize) -> Vec<Error> {
    let (me, size) = (comm.rank(), comm.size());
    let (next, before) = ((me + distance) % size, (me + size - distance) % size);
    let mut errors = Vec::new();
    let inbox = comm.recv_into(before, 1, vec![0; LONG]);
    home(comm.send(next, 1, vec![me; LONG]).await, &mut errors);
    if let Some((got, _)) = home(inbox.await, &mut errors) {
        assert!(got == vec![before; LONG]);
    }
    errors
}

/// The result of a failed collective is not checked.
fn home<T, B>(ended: Result<T, OpError<B>>, errors: &mut Vec<Error>) -> Option<T> {
    let failed = ended.map_err(|failed| failed.error);
    failed.map_err(|error| errors.push(error)).ok()
}

/// Checks the error of a collective that a cable has torn: the peer behind it has failed, or an earlier collective did.
fn is_clear(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::PeerFailed { .. } | ErrorKind::Revoked
    )
}

/// A slow cable, reset when a test ends in any way; one test runs at a time.
struct Slow {
    number: u32,
    _turn: MutexGuard<'static, ()>,
}

impl Slow {
    fn new(number: u32) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let slow = Self { number, _turn };
        end(shell(&format!("cable shape {number} rate 80mbit")));
        slow
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        end(cable("plug", self.number));
        end(cable("shape", self.number));
        // A port becomes active a while after its cable was plugged in; until then ranks find no port.
        while DevicePort::all().unwrap().iter().any(|port| !port.active) {
            std::thread::yield_now();
        }
    }
}

/// Starts a command on the cable.
fn cable(what: &str, number: u32) -> Child {
    shell(&format!("cable {what} {number}"))
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).spawn().unwrap()
}

fn end(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

const RANKS: u32 = 4;
/// The cable between the two sides, if each rank has one device.
const BETWEEN: u32 = 2;
/// Cables of ranks of even number, if each rank has two devices.
const FIRST: u32 = 0;
const SECOND: u32 = 1;

/// Rounds until a cable is pulled, and after the failure was detected.
const BEFORE: u64 = 1;
const ROUNDS: u64 = 2;
/// Numbers in a block: of a block that fits into one message, and of one that travels in pieces by all lanes.
const SHORT: usize = 4;
const LONG: usize = 10_000;
const POISON: u64 = 0x5a5a_5a5a_5a5a_5a5a;
