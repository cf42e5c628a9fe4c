//! Claims about cells, where a driver has them.

use ripstop_fabric::driver::{CELL_MAX, CellName, Down};

use crate::world::{Make, World, noise, peer};

/// Ranks that have met and have cells.
fn met(make: Make, ranks: u32) -> World {
    let mut world = World::new(make, ranks);
    assert!(world[0].driver.has_cells());
    world.meet();
    world
}

const fn name(tag: u32) -> CellName {
    CellName { ctx: 1, tag }
}

fn put(world: &mut World, [from, to]: [usize; 2], name: CellName, bytes: &[u8]) -> bool {
    world[from].driver.put_cell(peer(to), name, SIG, bytes)
}

fn take(world: &mut World, [from, to]: [usize; 2], name: CellName) -> Option<Vec<u8>> {
    let taken = world[to].driver.take_cell(peer(from), name)?;
    assert_eq!(taken.sig, SIG);
    Some(taken.bytes().to_vec())
}

pub(crate) fn messages_in_cells_are_there_once_and_under_their_names(make: Make) {
    let mut world = met(make, 2);
    for (len, tag) in (0..=CELL_MAX).zip(0..) {
        let bytes = noise(tag.into(), len);
        assert!(put(&mut world, [0, 1], name(tag), &bytes));
        let receiver = &world[1].driver;
        assert_eq!(receiver.peek_cell(peer(0), name(tag)), Some(SIG));
        let others = [name(tag + 1), CellName { ctx: 3, tag }];
        for other in others {
            assert_eq!(receiver.peek_cell(peer(0), other), None);
        }
        assert_eq!(receiver.cells_from(peer(0)), [name(tag)]);
        assert_eq!(take(&mut world, [0, 1], name(tag)), Some(bytes));
        assert_eq!(take(&mut world, [0, 1], name(tag)), None);
    }
    let before = world[1].heard.messages.len();
    world.settle();
    assert_eq!(world[1].heard.messages.len(), before, "it is no message");
}

pub(crate) fn cells_refuse_when_all_are_taken_and_go_on_when_all_are_free(make: Make) {
    let mut world = met(make, 2);
    let refused = (0..).find(|&tag| !put(&mut world, [0, 1], name(tag), &[1]));
    let refused = refused.expect("cells are few");
    assert!(refused > 1, "there are several");
    assert!(!put(&mut world, [0, 1], name(refused), &[2]));
    // How many must be taken before it goes on is the driver's affair.
    for tag in 0..refused {
        assert_eq!(take(&mut world, [0, 1], name(tag)), Some(vec![1]));
    }
    for tag in refused..2 * refused {
        assert!(put(&mut world, [0, 1], name(tag), &[2]));
    }
    let long = vec![0; CELL_MAX + 1];
    assert!(!put(&mut world, [1, 0], name(0), &long), "too long");
}

pub(crate) fn cells_of_several_peers_and_both_directions_do_not_mix(make: Make) {
    let mut world = met(make, 3);
    let pairs = (0..3).flat_map(|from| (0..3).map(move |to| [from, to]));
    let pairs: Vec<_> = pairs.filter(|[from, to]| from != to).collect();
    let content = |[from, to]: [usize; 2]| noise((from * 3 + to) as u64, 24);
    for &pair in &pairs {
        assert!(put(&mut world, pair, name(7), &content(pair)));
    }
    for &pair in pairs.iter().rev() {
        assert_eq!(take(&mut world, pair, name(7)), Some(content(pair)));
    }
}

pub(crate) fn what_lies_in_a_cell_is_there_when_its_sender_has_gone(make: Make) {
    let mut world = met(make, 2);
    assert!(put(&mut world, [0, 1], name(3), b"farewell"));
    world.close(0);
    world.until("the report", |world| world[1].heard.down.len() == 1);
    assert_eq!(world[1].heard.down, [(peer(0), Down::Finished)]);
    let kept = take(&mut world, [0, 1], name(3));
    assert_eq!(kept.as_deref(), Some(&b"farewell"[..]));
}

const SIG: u64 = 0xfeed;
