//! Claims about puts, gets, atomics, and keys to memory.

use std::sync::{
    Barrier, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use ripstop_fabric::{
    driver::{AtomicOp, CommandFailure, CommandToken, DriverCommand, LocalRange},
    memory::{MemoryRegion, RemoteRegion},
    random::SeededRandom,
};

use crate::world::{Ended, Make, World, all_of, contents, in_threads, local, noise, peer};

/// Offsets and lengths of pieces on, before and after the edges of words, cache lines and pages.
fn pieces(whole: usize) -> impl Iterator<Item = (usize, usize)> {
    let lens = [
        0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 20_000, 65_536, 100_003,
    ];
    let offsets = [0, 1, 7, 8, 63, 64, 4095, 4096, 5000];
    let all = lens.into_iter().flat_map(move |len| {
        offsets
            .map(|offset| (offset, len))
            .into_iter()
            .chain([(whole - len, len)])
    });
    all.chain([(0, whole)])
}

pub(crate) fn a_put_writes_its_range_and_nothing_else(make: Make) {
    for target in [1, 0] {
        let mut world = World::new(make, 2);
        let (region, key) = world[target].memory(200_000);
        let mut expected = noise(1, region.len());
        region.write(0, &expected);
        for (number, (offset, len)) in (2..).zip(pieces(region.len())) {
            let mut bytes = noise(number, len);
            expected[offset..][..len].copy_from_slice(&bytes);
            put(
                &mut world,
                target,
                &mut bytes,
                key.slice(offset as u64, len as u64).unwrap(),
            )
            .unwrap();
            assert!(
                contents(&region) == expected,
                "after a put of {len} bytes at {offset}"
            );
            assert!(
                bytes == noise(number, len),
                "the put of {len} bytes changed its source"
            );
        }
    }
}

pub(crate) fn a_get_reads_its_range_and_writes_nothing_else(make: Make) {
    for target in [1, 0] {
        let mut world = World::new(make, 2);
        let (region, key) = world[target].memory(200_000);
        let there = noise(1, region.len());
        region.write(0, &there);
        for (offset, len) in pieces(region.len()) {
            // Some bytes before and after must stay unchanged.
            let mut around = vec![0xaa; len + 32];
            get(
                &mut world,
                target,
                key.slice(offset as u64, len as u64).unwrap(),
                local(&mut around[16..][..len]),
            )
            .unwrap();
            assert!(
                around[16..][..len] == there[offset..][..len],
                "a get of {len} bytes at {offset}"
            );
            let edges = around[..16].iter().chain(&around[16 + len..]);
            assert!(
                edges.copied().all(|byte| byte == 0xaa),
                "a get of {len} bytes wrote beside its range"
            );
        }
        assert!(
            contents(&region) == there,
            "gets changed the memory they read"
        );
    }
}

pub(crate) fn put_and_get_between_two_regions(make: Make) {
    let mut world = World::new(make, 2);
    let (local, _) = world[0].memory(50_000);
    let (remote, key) = world[1].memory(50_000);
    local.write(0, &noise(3, local.len()));
    let key = key.slice(0, local.len() as u64).unwrap();
    world
        .one_sided(
            0,
            DriverCommand::Put {
                to: peer(1),
                from: all_of(&local),
                into: key,
                count: None,
                token: CommandToken(1),
            },
        )
        .unwrap();
    assert!(contents(&remote) == noise(3, remote.len()));
    remote.write(0, &noise(4, remote.len()));
    world
        .one_sided(
            0,
            DriverCommand::Get {
                to: peer(1),
                from: key,
                into: all_of(&local),
                token: CommandToken(2),
            },
        )
        .unwrap();
    assert!(contents(&local) == noise(4, local.len()));
}

pub(crate) fn put(world: &mut World, to: usize, from: &mut [u8], into: RemoteRegion) -> Ended {
    world.one_sided(
        0,
        DriverCommand::Put {
            to: peer(to),
            from: local(from),
            into,
            count: None,
            token: CommandToken(7),
        },
    )
}

fn get(world: &mut World, to: usize, from: RemoteRegion, into: LocalRange) -> Ended {
    world.one_sided(
        0,
        DriverCommand::Get {
            to: peer(to),
            from,
            into,
            token: CommandToken(8),
        },
    )
}

fn atomic(world: &mut World, to: usize, at: RemoteRegion, op: AtomicOp) -> Ended {
    world.one_sided(
        0,
        DriverCommand::Atomic {
            to: peer(to),
            at,
            op,
            token: CommandToken(9),
        },
    )
}

pub(crate) fn a_put_is_visible_when_a_message_that_follows_it_arrives(make: Make) {
    let mut world = World::new(make, 2);
    let (region, key) = world[1].memory(64 << 10);
    for round in 0..50 {
        let mut bytes = noise(round, region.len());
        put(&mut world, 1, &mut bytes, key).unwrap();
        world.send(0, 1, b"look", b"");
        world.hears(1, 1 + round as usize);
        assert!(contents(&region) == bytes, "round {round}");
    }
}

pub(crate) fn allocated_memory_is_zeroed_whole_pages_and_never_empty(make: Make) {
    let mut world = World::new(make, 1);
    let page = rustix::param::page_size();
    for len in [1, page - 1, page, page + 1, 300_000] {
        let region = world[0].driver.allocate(len).unwrap();
        assert_eq!(region.len(), len.next_multiple_of(page));
        assert!(contents(&region).iter().all(|byte| *byte == 0));
        region.write(0, &noise(1, len));
    }
    let refused = world[0].driver.allocate(0).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    assert!(world[0].driver.allocate(usize::MAX).is_err());
}

pub(crate) fn a_key_opens_the_exposed_range_only(make: Make) {
    let mut world = World::new(make, 2);
    let region = world[1].driver.allocate(8192).unwrap();
    let part = all_of(&region).slice(100, 1000);
    let key = world[1].driver.expose(part).unwrap();
    assert_eq!((key.owner, key.len), (1, 1000));
    put(&mut world, 1, &mut [5; 1000], key).unwrap();
    let there = contents(&region);
    assert!(there[100..1100].iter().all(|byte| *byte == 5));
    assert!(
        there[..100]
            .iter()
            .chain(&there[1100..])
            .all(|byte| *byte == 0)
    );
    assert!(key.slice(0, 1001).is_none() && key.slice(1000, 1).is_none());
    // A rank cannot give out keys to another rank's memory.
    let foreign = world[0].driver.expose(part);
    assert!(foreign.is_none_or(|key| key.owner == 0));
}

pub(crate) fn wrong_keys_are_refused(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (region, good) = world[1].memory(8192);
    region.write(0, &noise(5, 8192));
    let key = good.slice(64, 256).unwrap();
    let mut wrong = vec![
        RemoteRegion {
            kind: !key.kind,
            ..key
        },
        RemoteRegion { owner: 0, ..key },
        RemoteRegion { owner: 2, ..key },
        RemoteRegion {
            id: key.id.wrapping_add(1),
            ..key
        },
        RemoteRegion {
            id: u32::MAX,
            ..key
        },
        RemoteRegion {
            generation: key.generation.wrapping_add(1),
            ..key
        },
        RemoteRegion {
            whole: key.whole + 4096,
            ..key
        },
        RemoteRegion {
            whole: u64::MAX,
            ..key
        },
    ];
    let outside = [
        8192 - 255,
        8192,
        1 << 20,
        u64::MAX - 255,
        u64::MAX - 128,
        u64::MAX,
    ];
    wrong.extend(outside.map(|base| RemoteRegion { base, ..key }));
    for key in wrong {
        let mut bytes = vec![1; 256];
        check_refused(put(&mut world, 1, &mut bytes, key), "put", key);
        check_refused(get(&mut world, 1, key, local(&mut bytes)), "get", key);
        check_refused(
            atomic(
                &mut world,
                1,
                RemoteRegion { len: 8, ..key },
                AtomicOp::Swap(0),
            ),
            "atomic",
            key,
        );
        assert!(
            bytes.iter().all(|byte| *byte == 1),
            "a refused get wrote something"
        );
    }
    assert!(
        contents(&region) == noise(5, 8192),
        "a refused command wrote something"
    );
}

pub(crate) fn wrong_lengths_and_words_are_refused(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (region, good) = world[1].memory(8192);
    region.write(0, &noise(5, 8192));
    let key = good.slice(64, 256).unwrap();
    for len in [0, 1, 255, 257, 8192, u64::MAX] {
        let key = RemoteRegion { len, ..key };
        check_refused(
            put(&mut world, 1, &mut [1; 256], key),
            "put of 256 bytes",
            key,
        );
        check_refused(
            get(&mut world, 1, key, local(&mut [1; 256])),
            "get of 256 bytes",
            key,
        );
    }
    for (offset, len) in [(0, 0), (0, 4), (0, 16), (1, 8), (4, 8), (7, 8), (8190, 8)] {
        let at = RemoteRegion {
            base: good.base + offset,
            len,
            ..good
        };
        check_refused(atomic(&mut world, 1, at, AtomicOp::Swap(0)), "atomic", at);
    }
    assert!(
        contents(&region) == noise(5, 8192),
        "a refused command wrote something"
    );
}

fn check_refused(ended: Ended, what: &str, key: RemoteRegion) {
    assert!(
        matches!(ended, Err(CommandFailure::BadRange)),
        "{what} with {key:?} ended in {ended:?}, not in BadRange"
    );
}

pub(crate) fn keys_of_random_bytes_harm_no_rank(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (region, good) = world[1].memory(8192);
    region.write(0, &noise(6, 8192));
    let seed = 23;
    let mut random = SeededRandom::new(seed);
    for round in 0..1500 {
        let mut bytes = bytemuck::cast::<RemoteRegion, [u8; 40]>(good.slice(128, 512).unwrap());
        // From one flipped bit to noise.
        let changes = 1 << random.within(0..6);
        for _ in 0..changes {
            let (at, bit) = (random.within(0..40) as usize, random.within(0..8));
            bytes[at] ^= 1 << bit;
        }
        let key: RemoteRegion = bytemuck::cast(bytes);
        let mut buffer = vec![0; 512];
        let ended = get(&mut world, 1, key, local(&mut buffer));
        let inside = key.base <= 8192 - 512;
        assert!(
            ended.is_err() || inside,
            "seed {seed}, round {round}: {key:?} reads outside"
        );
        if key.kind != good.kind || !inside {
            let put = world.one_sided(
                0,
                DriverCommand::Put {
                    to: peer(1),
                    from: local(&mut buffer),
                    into: key,
                    count: None,
                    token: CommandToken(1),
                },
            );
            assert!(put.is_err(), "seed {seed}, round {round}: {key:?} writes");
        }
    }
    assert!(contents(&region) == noise(6, 8192));
}

pub(crate) fn the_key_to_a_dropped_region_is_refused(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let mut keys = Vec::new();
    for round in 0..20 {
        let (region, key) = world[1].memory(4096);
        put(&mut world, 1, &mut [1; 4096], key).unwrap();
        atomic(&mut world, 1, key.slice(8, 8).unwrap(), AtomicOp::Add(1)).unwrap();
        let clone = region.clone();
        drop(region);
        assert!(
            put(&mut world, 1, &mut [2; 4096], key).is_ok(),
            "a clone still holds the region, round {round}"
        );
        drop(clone);
        world.settle();
        keys.push(key);
        // Old keys must not reach the region that has taken the slot.
        let (next, _) = world[1].memory(4096);
        for old in &keys {
            check_refused(put(&mut world, 1, &mut [3; 4096], *old), "put", *old);
            check_refused(get(&mut world, 1, *old, local(&mut [3; 4096])), "get", *old);
            check_refused(
                atomic(&mut world, 1, old.slice(0, 8).unwrap(), AtomicOp::Add(1)),
                "atomic",
                *old,
            );
        }
        assert!(
            contents(&next).iter().all(|byte| *byte == 0),
            "an old key reached a new region"
        );
    }
}

pub(crate) fn memory_from_elsewhere_is_reached_where_caps_say_so(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let mut there = noise(9, 10_000);
    let reachable = world[1].driver.caps().any_memory.clone();
    let key = world[1].driver.expose(local(&mut there));
    match (reachable, key) {
        (Ok(()), Some(key)) => {
            let mut here = vec![0; 10_000];
            get(&mut world, 1, key, local(&mut here)).unwrap();
            assert!(here == noise(9, 10_000));
            let part = key.slice(77, 100).unwrap();
            get(&mut world, 1, part, local(&mut here[..100])).unwrap();
            assert!(here[..100] == noise(9, 10_000)[77..177]);
        }
        (Err(why), None) => assert!(why.len() > 10, "{why:?} does not say why"),
        (reachable, key) => panic!("caps say {reachable:?}, and expose gave {key:?}"),
    }
}

pub(crate) fn every_atomic_returns_the_old_word_and_leaves_the_new(make: Make) {
    let (a, b) = (0xf0f0_1234_5678_9abc_u64, 0x0ff0_ffff_0000_1111);
    let cases = [
        (AtomicOp::Add(b), a.wrapping_add(b)),
        (AtomicOp::Add(u64::MAX), a - 1),
        (AtomicOp::And(b), a & b),
        (AtomicOp::Or(b), a | b),
        (AtomicOp::Xor(b), a ^ b),
        (AtomicOp::Max(b), a.max(b)),
        (AtomicOp::Max(u64::MAX), u64::MAX),
        (AtomicOp::Min(b), a.min(b)),
        (AtomicOp::Min(u64::MAX), a),
        (AtomicOp::Swap(b), b),
        (
            AtomicOp::CompareSwap {
                expected: a,
                new: b,
            },
            b,
        ),
        (
            AtomicOp::CompareSwap {
                expected: b,
                new: b,
            },
            a,
        ),
        (AtomicOp::Fetch, a),
    ];
    for target in [1, 0] {
        let mut world = World::new(make, 2);
        let (region, key) = world[target].memory(4096);
        for (op, new) in cases {
            for offset in [0, 8, 4088] {
                region.atomic_u64(offset).store(a, SeqCst);
                let old =
                    atomic(&mut world, target, key.slice(offset as u64, 8).unwrap(), op).unwrap();
                assert_eq!(
                    (old, region.atomic_u64(offset).swap(0, SeqCst)),
                    (Some(a), new),
                    "{op:?} at {offset}"
                );
                assert!(
                    contents(&region).iter().all(|byte| *byte == 0),
                    "{op:?} at {offset} wrote beside its word"
                );
            }
        }
    }
}

pub(crate) fn atomics_of_all_ranks_sum_up(make: Make) {
    const RANKS: usize = 4;
    const COUNT: u64 = 500;
    let board: Mutex<Option<(MemoryRegion, RemoteRegion)>> = Mutex::new(None);
    let ready = Barrier::new(RANKS);
    let won = AtomicU64::new(0);
    in_threads(make, RANKS, |rank| {
        if rank.me.0 == 0 {
            *board.lock().unwrap() = Some(rank.memory(4096));
        }
        ready.wait();
        let key = board.lock().unwrap().as_ref().unwrap().1;
        for number in 0..COUNT {
            let at = |offset| key.slice(offset, 8).unwrap();
            let race = AtomicOp::CompareSwap {
                expected: number,
                new: number + 1,
            };
            for (offset, op) in [
                (0, AtomicOp::Add(3)),
                (64, AtomicOp::Max(u64::from(rank.me.0) * 1000 + number)),
                (128, race),
            ] {
                rank.post(DriverCommand::Atomic {
                    to: peer(0),
                    at: at(offset),
                    op,
                    token: CommandToken(offset),
                });
            }
            rank.until("three atomics", |heard| heard.fetched.len() == 3);
            let fetched = std::mem::take(&mut rank.heard.fetched);
            won.fetch_add(
                fetched
                    .iter()
                    .filter(|(token, old)| token.0 == 128 && *old == number)
                    .count() as u64,
                SeqCst,
            );
        }
        // Rank 0 must stay until the others have finished, which word 192 counts.
        rank.post(DriverCommand::Atomic {
            to: peer(0),
            at: key.slice(192, 8).unwrap(),
            op: AtomicOp::Add(1),
            token: CommandToken(0),
        });
        rank.until("the last atomic", |heard| heard.fetched.len() == 1);
        ready.wait();
        // The adapter's changes to a rank's own memory are visible after a turn of that rank.
        rank.progress();
    });
    let (region, _) = board.into_inner().unwrap().unwrap();
    assert_eq!(region.atomic_u64(0).load(SeqCst), 3 * COUNT * RANKS as u64);
    assert_eq!(
        region.atomic_u64(64).load(SeqCst),
        1000 * (RANKS as u64 - 1) + COUNT - 1
    );
    assert_eq!(
        region.atomic_u64(128).load(SeqCst),
        won.load(SeqCst),
        "each step of the word was won by one rank"
    );
    assert_eq!(region.atomic_u64(192).load(SeqCst), RANKS as u64);
}

pub(crate) fn many_commands_in_flight_each_end_once(make: Make) {
    let mut world = World::new(make, 2);
    let (region, key) = world[1].memory(1 << 16);
    let mut sources: Vec<_> = (0..256).map(|number| noise(number, 256)).collect();
    for (number, source) in (0..).zip(&mut sources) {
        let into = key.slice(256 * number, 256).unwrap();
        world.post(
            0,
            DriverCommand::Put {
                to: peer(1),
                from: local(source),
                into,
                count: None,
                token: CommandToken(number),
            },
        );
    }
    world.until("all puts", |world| world[0].heard.completed.len() >= 256);
    world.settle();
    let mut tokens: Vec<_> = world[0]
        .heard
        .completed
        .iter()
        .map(|token| token.0)
        .collect();
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..256), "a token came twice or never");
    assert!(contents(&region) == sources.concat());
}
