//! Memory whose entries the library does not unlink.

use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    super::{PortalsConfig, PreparedPortals, tests::prepare},
    PortalsExports,
};
use crate::{lanes::LaneSet, memory::MemoryRegion};

/// Returns a rank that handles its library like one that moves bytes only in calls, where fewer tries suffice. Runs one test at a
/// time, because another test might get the memory that this one has freed.
fn open() -> (PreparedPortals, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = PortalsConfig {
        published: true,
        ..PortalsConfig::default()
    };
    (prepare("portails4", config), alone)
}

/// Drops a region. Returns true if its memory stays mapped.
fn stays(region: MemoryRegion) -> bool {
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

/// Bytes of a region, so large that nothing else of this process takes its place immediately after it is unmapped.
const LEN: usize = 1 << 30;

fn kept(exports: &PortalsExports) -> usize {
    exports.lock().kept.len()
}

#[test]
fn memory_stays_for_ever_when_its_entry_is_still_in_use() {
    let (rank, _alone) = open();
    let exports = &rank.resources.exports;
    let [first, second] = [(); 2].map(|()| exports.allocate(LEN).expect("memory"));
    rank.resources.ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
    assert!(stays(first));
    assert!(rank.resources.ni.obey() > 1, "it was not asked again");
    assert!(!stays(second));
}

#[test]
fn memory_goes_when_its_entry_is_let_go_of_after_some_tries() {
    let (rank, _alone) = open();
    let region = rank.resources.exports.allocate(LEN).expect("memory");
    rank.resources
        .ni
        .refuse("PtlMEUnlink", "PTL_IN_USE", Some(40));
    assert!(!stays(region));
    assert_eq!(rank.resources.ni.obey(), 39);
}

#[test]
fn entries_of_a_name_that_are_in_use_are_unlinked_with_their_region() {
    let (rank, _alone) = open();
    let exports = &rank.resources.exports;
    for is_stuck in [false, true] {
        let region = exports.allocate(LEN).expect("memory");
        let other = exports.allocate(LEN).expect("memory");
        let serial = exports.name(7, &region).expect("room");
        rank.resources.ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
        exports.unname(serial);
        assert_eq!(kept(exports), 2, "its two entries");
        rank.resources.ni.obey();
        assert!(!stays(other));
        assert_eq!(kept(exports), 2, "they are of another region");
        // Of the three entries, only the last try of the last one succeeds.
        if is_stuck {
            rank.resources
                .ni
                .refuse("PtlMEUnlink", "PTL_IN_USE", Some(3 * 101));
        }
        assert_eq!(stays(region), is_stuck);
        assert_eq!(kept(exports), 0);
        rank.resources.ni.obey();
    }
}

#[test]
fn a_table_that_is_left_is_left_when_its_entries_are_let_go_of_or_their_memory_is() {
    let (rank, _alone) = open();
    let exports = &rank.resources.exports;
    let first = LaneSet::EMPTY.with(0);
    let before = exports.exposed_tables();
    let region = exports.allocate(LEN).expect("memory");
    exports.leave(first);
    rank.resources.ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
    assert!(!exports.have_left(first, 0));
    assert_eq!(exports.exposed_tables(), before, "peers are told too early");
    rank.resources.ni.obey();
    // The region has an entry in the old table and one in the new table, and all memory has one in the old table.
    rank.resources
        .ni
        .refuse("PtlMEUnlink", "PTL_IN_USE", Some(2));
    assert!(!stays(region));
    assert_eq!(rank.resources.ni.obey(), 2);
    rank.resources
        .ni
        .refuse("PtlMEUnlink", "PTL_IN_USE", Some(2));
    assert!(!exports.have_left(first, 0));
    assert!(exports.have_left(first, 0));
    assert_eq!(rank.resources.ni.obey(), 1);
    let after = exports.exposed_tables();
    assert_eq!(after.moves, before.moves + 1);
    assert_ne!(after.tables, before.tables);
}
