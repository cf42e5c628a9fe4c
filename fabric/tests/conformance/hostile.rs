//! Tests with a peer that writes garbage into all memory it can reach.

use std::{
    fs,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use ripstop_fabric::{
    driver::{ArmResult, AtomicOp, CommandToken, Driver, DriverCommand, PostResult, WorldRank},
    memory::{MemoryRegion, RemoteRegion},
    random::SeededRandom,
    shm::{Board, Shm, ShmConfig},
};

use crate::{
    processes::files_of,
    world::{Rank, local, noise, peer},
};

/// Number of worlds to break. This test has its own process, because it overwrites every memfd of the process.
const ROUNDS: u64 = 60;

pub(crate) fn scribble(seed: u64) {
    for round in 0..ROUNDS {
        let told = catch_unwind(AssertUnwindSafe(|| break_a_world(seed * ROUNDS + round)));
        assert!(
            told.is_ok(),
            "a rank panicked over nonsense in shared memory: seed {seed}, round {round}"
        );
    }
}

fn break_a_world(seed: u64) {
    let mut random = SeededRandom::new(seed);
    let board = Board::create(3).unwrap();
    let config = |rank| ShmConfig {
        ring_slots: 8,
        chunks: 4,
        single_copy: seed.is_multiple_of(2),
        // If garbage makes a rank ask another one for descriptors, there may be no answer.
        patience: Duration::from_millis(1),
        ..ShmConfig::new(rank)
    };
    let open = |rank| {
        Rank::new(
            WorldRank(rank),
            Box::new(Shm::open(&board, config(rank)).unwrap()) as Box<dyn Driver>,
        )
    };
    let mut ranks: Vec<Rank> = (0..3).map(open).collect();
    let keys: Vec<_> = ranks.iter_mut().map(|rank| rank.memory(4096)).collect();
    let mut memory = vec![noise(seed, 4096); 3];
    use_everything(&mut ranks, &keys, &mut memory, &mut random);
    // In a third of the worlds the board stays intact, so that not everything fails there immediately.
    let skip = if seed.is_multiple_of(3) {
        "ripstop-board"
    } else {
        "nothing"
    };
    let targets = memfds(skip);
    assert!(
        targets.len() >= 6,
        "three segments and three regions, not {}",
        targets.len()
    );
    if seed.is_multiple_of(4) {
        while_it_changes(&targets, seed, || {
            use_everything(&mut ranks, &keys, &mut memory, &mut random)
        });
    } else {
        for _ in 0..6 {
            for target in &targets {
                write_nonsense(target, &mut random);
            }
            use_everything(&mut ranks, &keys, &mut memory, &mut random);
        }
    }
    drop(ranks);
    let left = files_of(&board.address());
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Writes garbage from another thread meanwhile, so that checked values change before they are used.
fn while_it_changes(targets: &[MemoryRegion], seed: u64, mut used: impl FnMut()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SeededRandom::new(!seed);
            while !done.load(Relaxed) {
                targets
                    .iter()
                    .for_each(|target| write_nonsense(target, &mut random));
            }
        });
        let told = catch_unwind(AssertUnwindSafe(|| (0..6).for_each(|_| used())));
        done.store(true, Relaxed);
        told.unwrap();
    });
}

/// Posts a few commands of every kind and makes a few turns, whatever the results are.
fn use_everything(
    ranks: &mut [Rank],
    keys: &[(MemoryRegion, RemoteRegion)],
    memory: &mut [Vec<u8>],
    random: &mut SeededRandom,
) {
    for _ in 0..4 {
        for (rank, bytes) in ranks.iter_mut().zip(memory.iter_mut()) {
            let to = random.within(0..3) as usize;
            let body = &noise(1, random.within(0..9000) as usize);
            let len = body.len().min(rank.driver.caps().body_max);
            let key = keys[to].1;
            let at = key.slice(8, 8).unwrap();
            for command in [
                DriverCommand::Message {
                    to: peer(to),
                    header: b"a header",
                    body: &body[..len],
                },
                DriverCommand::Message {
                    to: peer(to),
                    header: b"",
                    body: b"",
                },
                DriverCommand::Put {
                    to: peer(to),
                    from: local(bytes),
                    into: key,
                    count: None,
                    token: CommandToken(1),
                },
                DriverCommand::Get {
                    to: peer(to),
                    from: key,
                    into: local(bytes),
                    token: CommandToken(2),
                },
                DriverCommand::Atomic {
                    to: peer(to),
                    at,
                    op: AtomicOp::Add(1),
                    token: CommandToken(3),
                },
            ] {
                let (PostResult::Posted | PostResult::Full(_)) = rank.driver.post(command);
            }
        }
        for rank in ranks.iter_mut() {
            (0..3).for_each(|_| _ = rank.progress());
            let (ArmResult::Ready | ArmResult::Busy) = rank.driver.arm();
            rank.heard.messages.clear();
        }
    }
}

fn write_nonsense(target: &MemoryRegion, random: &mut SeededRandom) {
    let words = target.len() as u64 / 4;
    for _ in 0..1 << random.within(0..8) {
        // Heads and indices are at the start, so most of the garbage goes there.
        let reach = words.min(1 << random.within(4..20));
        let word = target.atomic_u32(4 * random.within(0..reach) as usize);
        let old = word.load(Relaxed);
        let new = match random.within(0..6) {
            0 => 0,
            1 => u32::MAX,
            2 => old.wrapping_add(1),
            3 => old ^ (1 << random.within(0..32)),
            4 => random.within(0..300) as u32,
            _ => (random.bits() >> 32) as u32,
        };
        word.store(new, Relaxed);
    }
}

/// Maps all memfds that this process has open, as a peer would.
fn memfds(except: &str) -> Vec<MemoryRegion> {
    let fds = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let of_ripstop = fds.filter(|path| {
        let name = fs::read_link(path).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        name.contains("memfd:ripstop") && !name.contains(except)
    });
    let opened = of_ripstop.map(|path| {
        fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    });
    opened
        .map(|file| map(file.metadata().unwrap().len(), file.into()))
        .collect()
}

fn map(len: u64, fd: OwnedFd) -> MemoryRegion {
    MemoryRegion::open(fd, usize::try_from(len).unwrap(), true).unwrap()
}
