//! Network interfaces: identity, map, limits, status.

use ripstop_softportals::{AckRequest, NiLimits, PhysicalId, SoftError, SoftPeer, TableOptions};

use crate::world::{Target, World, address, entry};

#[test]
fn a_logical_interface_has_a_rank_once_it_has_a_map() {
    let mut world = World::of(3, |config| config);
    assert_eq!(world.nodes[2].id(), SoftPeer::Rank(2));
    assert_eq!(world.nodes[2].map().len(), 3);
    assert_eq!(
        world.nodes[2].set_map(&[address(2)]),
        Err(SoftError::Ignored)
    );
}

#[test]
fn a_map_has_to_name_this_process_and_an_interface_that_uses_it() {
    let physical = |config| ripstop_softportals::NiConfig {
        logical: false,
        ..config
    };
    let mut world = World::of(1, physical);
    assert_eq!(world.nodes[0].id(), SoftPeer::At(address(0)));
    assert!(matches!(
        world.nodes[0].set_map(&[address(0)]),
        Err(SoftError::ArgInvalid(_))
    ));
    let mut bare = ripstop_softportals::SoftInterface::new(
        *World::pair().nodes[0].config(),
        crate::world::Ram(Vec::new()),
    );
    let stranger = PhysicalId { nid: 9, pid: 9 };
    assert!(matches!(
        bare.set_map(&[stranger]),
        Err(SoftError::ArgInvalid(_))
    ));
    assert_eq!(bare.set_map(&[stranger, address(0)]), Ok(()));
    assert_eq!(bare.id(), SoftPeer::Rank(1));
}

#[test]
fn every_limit_is_kept() {
    let limits = NiLimits {
        max_eqs: 2,
        max_cts: 1,
        max_mds: 1,
        max_entries: 2,
        max_list_size: 1,
        max_pt_index: 1,
        max_iovecs: 1,
        max_eq_size: 8,
        ..NiLimits::MOST
    };
    let mut world = World::of(1, |config| ripstop_softportals::NiConfig {
        limits,
        ..config
    });
    let node = &mut world.nodes[0];
    assert_eq!(node.eq_alloc(9), Err(SoftError::NoSpace));
    let target = Target::with(node, TableOptions::NONE, 8);
    let eq = node.eq_alloc(1).unwrap();
    assert_eq!(node.eq_alloc(1), Err(SoftError::NoSpace));
    node.eq_free(eq).unwrap();
    assert!(node.eq_alloc(1).is_ok());
    let ct = node.ct_alloc().unwrap();
    assert_eq!(node.ct_alloc(), Err(SoftError::NoSpace));
    node.ct_free(ct).unwrap();
    assert!(node.ct_alloc().is_ok());
    let list = ripstop_softportals::EntryList::Priority;
    target.append(node, entry(0, 8), list, 0);
    assert_eq!(
        node.append(0, entry(0, 8), list, 0),
        Err(SoftError::ListTooLong)
    );
    let other = ripstop_softportals::EntryList::Overflow;
    target.append(node, entry(0, 8), other, 0);
    assert_eq!(node.pt_alloc(TableOptions::NONE, None, None), Ok(1));
    assert_eq!(
        node.append(1, entry(0, 8), other, 0),
        Err(SoftError::NoSpace)
    );
    assert_eq!(
        node.pt_alloc(TableOptions::NONE, None, None),
        Err(SoftError::PtFull)
    );
}

#[test]
fn atomics_are_as_short_as_one_asks_for() {
    let asked = NiLimits {
        max_atomic_size: 4,
        max_fetch_atomic_size: 2,
        ..NiLimits::MOST
    };
    let limits = asked.within(&NiLimits::MOST);
    assert_eq!(
        (limits.max_atomic_size, limits.max_fetch_atomic_size),
        (4, 32),
        "one that fetches takes an element of each datatype"
    );
    let most = NiLimits {
        max_atomic_size: u64::MAX,
        ..NiLimits::MOST
    };
    assert_eq!(most.within(&NiLimits::MOST), NiLimits::MOST);
}

#[test]
fn the_status_counts_what_went_wrong_for_others() {
    let mut world = World::pair();
    world.put(b"nobody", AckRequest::Full);
    assert_eq!(world.nodes[1].status().drops, 1);
    let target = Target::new(&mut world.nodes[1]);
    let strict = ripstop_softportals::SoftListEntry {
        uid: Some(7),
        ..entry(0, 8)
    };
    target.append(
        &mut world.nodes[1],
        strict,
        ripstop_softportals::EntryList::Priority,
        0,
    );
    world.put(b"x", AckRequest::Full);
    assert_eq!(world.nodes[1].status().permission_violations, 1);
    assert_eq!(
        world.nodes[0].status(),
        ripstop_softportals::StatusRegisters::default()
    );
}
