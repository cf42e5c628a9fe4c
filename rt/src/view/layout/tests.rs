use std::{io::ErrorKind, os::fd::OwnedFd, panic::Location};

use ripstop_fabric::{memory::MemoryRegion, random::SeededRandom};
use rustix::{
    fs::{MemfdFlags, fstat, ftruncate, memfd_create},
    io::pwrite,
};

use super::{
    super::{
        flight::{FLIGHT_RECORDS, FlightEvent, FlightKind, FlightNote, FlightRecorder},
        snapshot::{
            PublishedComm, PublishedLock, PublishedPeer, PublishedWait, StoredGroup, WaitKind,
        },
    },
    *,
};

fn snapshot(number: u64, waits: usize) -> RankSnapshot {
    let wait = |id: usize| PublishedWait {
        kind: WaitKind::ALL[id % WaitKind::ALL.len()],
        id: id as u64,
        comm: 2,
        peer: (!id.is_multiple_of(3)).then_some(7),
        tag: (!id.is_multiple_of(2)).then_some(9),
        sig: 5,
        bytes: 8 << 10,
        is_awaited: id.is_multiple_of(2),
        since: 77,
        name: format!("f64 x {id}"),
        at: "src/halo.rs:88".to_owned(),
    };
    RankSnapshot {
        number,
        taken: 1234,
        quiet_since: 1200,
        phase: RankPhase::Waiting,
        thread: 4712,
        is_passive: true,
        is_truncated: false,
        posted: 3,
        arrived: 4,
        ended: 6,
        events: 9,
        has_all_peers: true,
        peers: vec![PublishedPeer {
            rank: 7,
            sent: 41,
            received: 2,
        }],
        waits: (0..waits).map(wait).collect(),
        comms: vec![PublishedComm {
            comm: 0,
            size: 8,
            members: 99,
            next: 17,
            last: "barrier #16, src/io.rs:40".to_owned(),
        }],
        stored: vec![StoredGroup {
            is_probed: false,
            source: 7,
            comm: 0,
            tag: 8,
            sig: 5,
            count: 2,
            bytes: 16,
            name: "f64 x 1".to_owned(),
        }],
        locks: vec![PublishedLock {
            comm: 2,
            window: 5,
            holder: 6,
        }],
        last_ended: "recv from rank 2, src/halo.rs:88".to_owned(),
        sleep: (!number.is_multiple_of(3)).then(|| PublishedSleep {
            number: 8,
            nanos: 50_000,
            at: "src/wait.rs:12".to_owned(),
        }),
        recorded: number.is_multiple_of(2).then_some(RecordedTotals {
            sent_bytes: 11,
            received_bytes: 12,
            waited: [1, 2, 3, 4, 5],
        }),
    }
}

fn view(snapshots: &[RankSnapshot], current: u64) -> OwnedFd {
    let file = memfd_create(VIEW_NAME, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, VIEW_LEN as u64).unwrap();
    let put = |bytes: &[u8], at| assert_eq!(pwrite(&file, bytes, at).unwrap(), bytes.len());
    put(bytes_of(&ViewHead::new(3, 8, 42)), 0);
    put(bytes_of(&ViewPulse { current, parked: 0 }), PULSE_AT);
    for (snapshot, at) in snapshots.iter().zip(SLOTS_AT) {
        put(&encode(snapshot), at);
    }
    file
}

#[test]
fn what_was_written_is_read_and_the_newest_counts() {
    let file = view(&[snapshot(6, 5), snapshot(5, 2)], 6);
    let read = RankView::read(&file).unwrap();
    assert_eq!(read.snapshot, snapshot(6, 5));
    assert!(read.is_current && read.head.rank == 3 && read.head.job == 42);
    let file = view(&[snapshot(6, 5), snapshot(7, 2)], AWAKE);
    let read = RankView::read(&file).unwrap();
    assert!(!read.is_current && read.snapshot.number == 7);
}

#[test]
fn a_snapshot_that_is_being_written_is_skipped_for_the_one_before() {
    let file = view(&[snapshot(6, 3), snapshot(5, 2)], 5);
    let whole = encode(&snapshot(8, 50));
    pwrite(&file, &whole[..whole.len() / 2], SLOTS_AT[0]).unwrap();
    assert_eq!(RankView::read(&file).unwrap().snapshot, snapshot(5, 2));
}

#[test]
fn what_has_no_room_is_left_out_and_that_is_said() {
    let file = view(&[snapshot(1, 5_000)], 1);
    let read = RankView::read(&file).unwrap().snapshot;
    assert!(read.is_truncated && read.waits.len() > 500 && read.waits.len() < 5_000);
    assert_eq!(read.waits[..], snapshot(1, 5_000).waits[..read.waits.len()]);
    let many = RankSnapshot {
        peers: vec![PublishedPeer::default(); 20_000],
        ..snapshot(1, 1)
    };
    let read = RankView::read(view(&[many], 1)).unwrap().snapshot;
    assert!(!read.has_all_peers && read.peers.len() > 1_000 && !read.is_truncated);
}

#[test]
fn a_view_that_is_full_takes_256_kib_and_24_bytes_for_each_peer() {
    let region = MemoryRegion::create("ripstop-test-view", VIEW_LEN, false).unwrap();
    let taken = || u64::try_from(fstat(&region).unwrap().st_blocks).unwrap() * 512;
    assert_eq!(taken(), 0, "pages take memory when they are written");
    let mut recorder = FlightRecorder::new(region.clone());
    // Leaked, because a location lives as long as its program.
    let lines: &'static [Location<'static>] = vec![*Location::caller(); 200].leak();
    for at in lines.iter().cycle().take(2 * FLIGHT_RECORDS) {
        let note = FlightNote {
            event: FlightEvent::Ended,
            kind: FlightKind::Recv,
            peer: None,
            tag: None,
            comm: 0,
            bytes: 0,
        };
        recorder.note(note, at);
    }
    let full = RankSnapshot {
        peers: vec![PublishedPeer::default(); PEERS_MAX],
        ..snapshot(1, 5_000)
    };
    for at in SLOTS_AT {
        pwrite(&region, &encode(&full), at).unwrap();
    }
    // Memory is taken by whole pages, which are longer on some processors.
    let budget =
        ((256 << 10) + 24 * PEERS_MAX as u64).next_multiple_of(rustix::param::page_size() as u64);
    assert!(taken() <= budget, "{} bytes", taken());
    assert!(taken() > budget / 2, "{} bytes: it is not full", taken());
}

#[test]
fn a_view_of_another_version_is_named_and_one_of_nothing_refused() {
    let file = view(&[snapshot(1, 1)], 1);
    pwrite(&file, &9_u32.to_ne_bytes(), 8).unwrap();
    let why = RankView::read(&file).unwrap_err().to_string();
    assert!(
        why.contains(&format!("layout 9, this command {VERSION}")),
        "{why}"
    );
    let empty = memfd_create(VIEW_NAME, MemfdFlags::CLOEXEC).unwrap();
    let too_short = RankView::read(&empty).unwrap_err();
    assert!(too_short.to_string().contains("too short"));
    ftruncate(&empty, 300).unwrap();
    let not_written = RankView::read(&empty).unwrap_err();
    assert_eq!(
        [too_short.kind(), not_written.kind()],
        [ErrorKind::UnexpectedEof; 2]
    );
    pwrite(&empty, &[7; 300], 0).unwrap();
    assert!(RankView::read(&empty).is_err());
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed helps to reproduce a failure")]
fn no_contents_of_a_view_do_harm() {
    let seed = std::process::id();
    println!("seed {seed}");
    let mut random = SeededRandom::new(u64::from(seed));
    let whole = encode(&snapshot(3, 40));
    let (mut refused, mut read) = (0, 0);
    for _ in 0..3_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.bits() % 4 {
            let at = usize::try_from(random.bits() % bytes.len() as u64).unwrap();
            bytes[at] = random.bits().to_ne_bytes()[0];
        }
        bytes.truncate(
            usize::try_from(random.bits() % 2 * bytes.len() as u64)
                .unwrap()
                .max(bytes.len() / 2),
        );
        // With a sum that fits, as a hostile rank would write it.
        if let Some(mut head) = take_pod::<SlotHead>(&mut &bytes[..]) {
            head.checksum = 0;
            if let Some(body) = body_len(&head)
                .and_then(|len| bytes.get(size_of::<SlotHead>()..size_of::<SlotHead>() + len))
            {
                head.checksum = checksum(&head, body);
                bytes[..size_of::<SlotHead>()].copy_from_slice(bytes_of(&head));
            }
        }
        match decode(&bytes) {
            Some(snapshot) => {
                assert!(
                    snapshot
                        .waits
                        .iter()
                        .all(|wait| !wait.at.contains(char::is_control))
                );
                read += 1;
            }
            None => refused += 1,
        }
    }
    assert!(
        refused > 100 && read > 100,
        "{refused} refused, {read} read"
    );
}

#[test]
fn a_job_of_more_ranks_than_any_has_is_refused() {
    for (size, is_fine) in [(1 << 24, true), ((1 << 24) + 1, false), (u32::MAX, false)] {
        let file = memfd_create(VIEW_NAME, MemfdFlags::CLOEXEC).unwrap();
        let head = ViewHead::new(0, size, 0);
        assert!(pwrite(&file, bytes_of(&head), 0).is_ok());
        assert_eq!(ViewHead::read(&file).is_ok(), is_fine, "{size}");
    }
}
