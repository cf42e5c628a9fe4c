//! Memory whose entries the library does not let go of.

use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    super::{PortalsConfig, Prepared, tests::prepare},
    Exports,
};
use crate::{lanes::LaneSet, memory::Region};

/// As carefully as over a library that moves bytes in calls only: there fewer tries are enough. One at a time, as another test
/// might get the memory that this one has let go of.
fn open() -> (Prepared, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = PortalsConfig {
        published: true,
        ..PortalsConfig::default()
    };
    (prepare("portails4", config), alone)
}

/// Drops a region. Whether its memory stays.
fn stays(region: Region) -> bool {
    let start = region.start().addr().get();
    drop(region);
    let maps = fs::read_to_string("/proc/self/maps").expect("what is mapped");
    let ranges = maps.lines().filter_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(address(from)?..address(to)?)
    });
    ranges.into_iter().any(|range| range.contains(&start))
}

/// So much that nothing else of this process takes all of its place as soon as it is gone.
const LEN: usize = 1 << 30;

fn kept(exports: &Exports) -> usize {
    exports.lock().kept.len()
}

#[test]
fn memory_stays_for_ever_when_its_entry_is_still_in_use() {
    let (rank, _alone) = open();
    let exports = &rank.ground.exports;
    let [first, second] = [(); 2].map(|()| exports.allocate(LEN).expect("memory"));
    rank.ground.ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
    assert!(stays(first));
    assert!(rank.ground.ni.obey() > 1, "it was not asked again");
    assert!(!stays(second));
}

#[test]
fn memory_goes_when_its_entry_is_let_go_of_after_some_tries() {
    let (rank, _alone) = open();
    let region = rank.ground.exports.allocate(LEN).expect("memory");
    rank.ground.ni.refuse("PtlMEUnlink", "PTL_IN_USE", Some(40));
    assert!(!stays(region));
    assert_eq!(rank.ground.ni.obey(), 39);
}

#[test]
fn entries_of_a_name_that_are_in_use_are_unlinked_with_their_region() {
    let (rank, _alone) = open();
    let exports = &rank.ground.exports;
    for is_stuck in [false, true] {
        let region = exports.allocate(LEN).expect("memory");
        let other = exports.allocate(LEN).expect("memory");
        let serial = exports.name(7, &region).expect("room");
        rank.ground.ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
        exports.unname(serial);
        assert_eq!(kept(exports), 2, "its two entries");
        rank.ground.ni.obey();
        assert!(!stays(other));
        assert_eq!(kept(exports), 2, "they are of another region");
        // Of three entries the last one that is tried is let go of at once.
        if is_stuck {
            rank.ground
                .ni
                .refuse("PtlMEUnlink", "PTL_IN_USE", Some(3 * 101));
        }
        assert_eq!(stays(region), is_stuck);
        assert_eq!(kept(exports), 0);
        rank.ground.ni.obey();
    }
}

#[test]
fn a_table_that_is_left_is_left_when_its_entries_are_let_go_of_or_their_memory_is() {
    let (rank, _alone) = open();
    let exports = &rank.ground.exports;
    let first = LaneSet::EMPTY.with(0);
    let before = exports.places();
    let region = exports.allocate(LEN).expect("memory");
    exports.leave(first);
    rank.ground.ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
    assert!(!exports.have_left(first, 0));
    assert_eq!(exports.places(), before, "peers are told too early");
    rank.ground.ni.obey();
    // Both entries of the region are asked for, and all memory has one in the old table.
    rank.ground.ni.refuse("PtlMEUnlink", "PTL_IN_USE", Some(2));
    assert!(!stays(region));
    assert_eq!(rank.ground.ni.obey(), 2);
    rank.ground.ni.refuse("PtlMEUnlink", "PTL_IN_USE", Some(2));
    assert!(!exports.have_left(first, 0));
    assert!(exports.have_left(first, 0));
    assert_eq!(rank.ground.ni.obey(), 1);
    let after = exports.places();
    assert_eq!(after.moves, before.moves + 1);
    assert_ne!(after.tables, before.tables);
}
