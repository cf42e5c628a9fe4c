//! Memory that the ranks of a node map.

use ripstop_fabric::{driver::NodeMemory, memory::RemoteRegion, random::SeededRandom};

use crate::world::{Make, World, all_of, contents, noise, peer};

const RANKS: usize = 4;

fn node(world: &mut World, rank: usize) -> &mut dyn NodeMemory {
    let node = world[rank].driver.node_memory();
    node.expect("a driver with this ability")
}

pub(crate) fn ranks_that_share_it_see_what_each_other_writes(make: Make) {
    let mut world = World::new(make, RANKS as u32);
    world.meet();
    for owner in 0..RANKS {
        let memory = node(&mut world, owner).allocate_on_node(9000).unwrap();
        assert!(contents(&memory).iter().all(|byte| *byte == 0));
        let key = node(&mut world, owner).expose_on_node(all_of(&memory));
        let key = key.unwrap();
        let part = key.slice(4000, 5000).unwrap();
        memory.write(0, &noise(owner as u64, memory.len()));
        let mut shared = 1;
        for other in (0..RANKS).filter(|other| *other != owner) {
            let node = node(&mut world, other);
            let shares = node.shares_with(peer(owner));
            let reached = node.reach_on_node(peer(owner), part);
            assert_eq!(reached.is_some(), shares, "rank {other} of rank {owner}");
            let Some((mapped, start)) = reached else {
                continue;
            };
            shared += 1;
            assert_eq!((mapped.len(), start), (memory.len(), 4000));
            assert!(contents(&mapped) == contents(&memory));
            mapped.write(start, &[other as u8]);
            let mut first = [0];
            memory.read(4000, &mut first);
            assert_eq!(first, [other as u8]);
        }
        assert!(shared > 1, "rank {owner} shares memory with no other rank");
        drop(memory);
        for other in (0..RANKS).filter(|other| *other != owner) {
            let reached = node(&mut world, other).reach_on_node(peer(owner), key);
            assert!(reached.is_none(), "memory of rank {owner} that is gone");
        }
    }
}

pub(crate) fn keys_of_other_ranks_or_of_random_bytes_map_nothing(make: Make) {
    let mut world = World::new(make, RANKS as u32);
    world.meet();
    let memory = node(&mut world, 0).allocate_on_node(4096).unwrap();
    let key = node(&mut world, 0).expose_on_node(all_of(&memory));
    let key = key.unwrap();
    let near = (1..RANKS).find(|&rank| node(&mut world, rank).shares_with(peer(0)));
    let near = near.expect("a neighbor");
    assert!(node(&mut world, near).reach_on_node(peer(0), key).is_some());
    for owner in 1..RANKS {
        let reached = node(&mut world, near).reach_on_node(peer(owner), key);
        assert!(reached.is_none(), "the memory is not that of rank {owner}");
    }
    let long = RemoteRegion {
        len: key.len + 1,
        ..key
    };
    assert!(
        node(&mut world, near)
            .reach_on_node(peer(0), long)
            .is_none()
    );
    let mut random = SeededRandom::new(7);
    for _ in 0..1000 {
        let words = [(); 5].map(|()| random.bits());
        let wild: RemoteRegion = bytemuck::cast(words);
        assert!(
            node(&mut world, near)
                .reach_on_node(peer(0), wild)
                .is_none()
        );
    }
}
