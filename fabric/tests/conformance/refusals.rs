//! Errors about a Portals library that is missing, wrong or too small.
//!
//! Each test runs in its own process, because a library reads the environment, and one that was used wrongly must not be used
//! again.

use std::{
    env,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::Stdio,
};

use ripstop_fabric::{
    driver::{ArmResult, CommandToken, DownCause, Driver, DriverCommand},
    memory::MemoryRegion,
    portals::{Portals, PortalsConfig},
};

use crate::{
    copies::library,
    portals::{FAMILIES, PreparedCopy, little_room, prepare, world},
    processes::{NETWORK, command, end_of},
    world::{Rank, World, contents, local, peer},
};

const LIBRARY: &str = "RIPSTOP_PORTALS_LIBRARY";
const ABI: &str = "RIPSTOP_PORTALS_ABI";
const LIMITS: &str = "RIPSTOP_PORTALS_LIMITS";
/// Words that the error must contain, separated by bars.
const WORDS: &str = "RIPSTOP_TEST_WORDS";

/// Opens a library with these variables, and checks for these words in the error.
fn refuses(variables: &[(&str, &str)], words: &str) {
    let mut process = command("portals refusal", 0, "", 0);
    process
        .env_remove(LIBRARY)
        .env_remove(ABI)
        .envs(variables.iter().copied())
        .env(WORDS, words)
        .stderr(Stdio::inherit());
    let end = end_of(&mut process.spawn().unwrap());
    assert!(end.success(), "{variables:?}: {end}");
}

/// Runs in its own process.
pub(crate) fn be_refused() {
    let words = env::var(WORDS).unwrap();
    let why = match Portals::prepare(PortalsConfig::default()) {
        Err(why) => why.to_string(),
        Ok(_) if env::var(LIBRARY).is_err() => {
            return eprintln!("there is a Portals library on this machine, so it is not missed");
        }
        Ok(_) => panic!("it was taken"),
    };
    for word in words.split('|') {
        assert!(why.contains(word), "`{word}` is not in: {why}");
    }
}

fn path_of(family: &str) -> String {
    library(family).display().to_string()
}

#[test]
fn a_library_that_is_missing_is_said_to_be_with_where_it_was_looked_for_and_what_to_install() {
    refuses(
        &[("LD_LIBRARY_PATH", "")],
        "libportals.so.4|libportals.so|LD_LIBRARY_PATH|install BXI's or Sandia's|RIPSTOP_PORTALS_LIBRARY",
    );
    refuses(
        &[(LIBRARY, "/nowhere/libportals.so.4")],
        "/nowhere/libportals.so.4|cannot be loaded|No such file",
    );
}

#[test]
fn a_library_that_lacks_functions_is_refused_with_their_names() {
    refuses(
        &[(LIBRARY, "libc.so.6")],
        "lacks PtlInit, PtlAtomicSync, PtlNIInit|PtlSwap|incomplete or too old",
    );
}

#[test]
fn a_family_that_the_library_is_not_of_is_found_out_before_anything_is_sent() {
    for of in FAMILIES {
        for named in ["sandia42", "sandia43", "portails4", "bxi2", "bxi3"] {
            // These two cannot be distinguished by a put that succeeds.
            let alike = (of, named) == ("portails4", "bxi2");
            if named != of && !alike {
                refuses(&[(LIBRARY, &path_of(of)), (ABI, named)], ABI);
            }
        }
    }
    refuses(
        &[(LIBRARY, &path_of("sandia42")), (ABI, "portals5")],
        "`portals5`|sandia42, sandia43, portails4, bxi2, bxi3",
    );
}

#[test]
fn limits_that_are_too_small_to_start_are_named() {
    let cases = [
        ("max_eqs=2", "max_eqs = 2|4 are needed|raise that limit"),
        ("max_mds=1", "max_mds = 1|2 are needed"),
        ("max_pt_index=1", "max_pt_index = 1"),
        ("max_entries=5", "max_entries = 5|11 are needed"),
        ("max_list_size=3", "max_list_size = 3|4 are needed"),
        ("max_msg_size=65536", "max_msg_size = 65536"),
        (
            "max_fetch_atomic_size=4",
            "max_fetch_atomic_size = 4|8 are needed",
        ),
        (
            "max_eq_size=100",
            "4096 events|PtlEQAlloc|PortalsConfig::events",
        ),
    ];
    for family in FAMILIES {
        for (limits, words) in cases {
            refuses(&[(LIBRARY, &path_of(family)), (LIMITS, limits)], words);
        }
    }
}

#[test]
fn a_rank_that_starts_before_its_predecessor_is_gone_gets_another_process_id() {
    let mut process = command("portals squatted", 0, "", 0);
    let mut child = process.env(NETWORK, "squatted").spawn().unwrap();
    assert!(end_of(&mut child).success());
}

/// Runs in its own process, on its own network.
pub(crate) fn pass_over_an_id_that_is_taken() {
    let open = || {
        let config = PortalsConfig {
            library: Some(library("sandia42")),
            ..PortalsConfig::default()
        };
        let address = Portals::prepare(config).unwrap().address();
        let word = |at: usize| u32::from_le_bytes(address[at..at + 4].try_into().unwrap());
        (word(4), word(8))
    };
    let (nid, pid) = open();
    assert_eq!(open(), (nid, pid), "it is free again");
    // The socket name of a matching, physical interface with this process id.
    let name = format!("ripstop-portals/squatted/0/2/{nid}/{pid}");
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let _squatter = UnixDatagram::bind_addr(&name).unwrap();
    assert_ne!(open(), (nid, pid));
}

#[test]
fn keys_of_the_previous_owner_of_an_address_open_no_memory_of_the_present_owner() {
    let mut process = command("portals heir", 0, "", 0);
    let mut child = process.env(NETWORK, "heir").spawn().unwrap();
    assert!(end_of(&mut child).success());
}

/// Runs in its own process, on its own network, where a free process id is reused immediately.
pub(crate) fn inherit_an_address() {
    let process = |address: &[u8]| address[4..12].to_vec();
    let open = || prepare("sandia42", PortalsConfig::default());
    let [survivor, dies] = [open(), open()];
    let all = [&survivor, &dies].map(PreparedCopy::address).to_vec();
    let mut dies = Rank::new(peer(1), Box::new(dies.connect(all.clone())));
    let mut bytes = vec![1; 64];
    let (_, to_region) = dies.memory(4096);
    let to_bytes = dies.driver.expose(local(&mut bytes)).unwrap();
    let survivor = Box::new(survivor.connect(all.clone())) as Box<dyn Driver>;
    drop(dies);

    let heir = open();
    let address = heir.address();
    assert_eq!(process(&address), process(&all[1]), "the same place");
    let mut heir = Rank::new(peer(0), Box::new(heir.connect(vec![address])));
    let (region, of_heir) = heir.memory(4096);
    assert_eq!(
        (of_heir.whole, of_heir.base),
        (to_region.whole, to_region.base)
    );
    let mut world = World::from_drivers(vec![survivor]);
    for into in [to_region.slice(0, 64).unwrap(), to_bytes] {
        let command = DriverCommand::Put {
            to: peer(1),
            from: local(&mut [7; 64]),
            into,
            count: None,
            token: CommandToken(1),
        };
        assert!(world.one_sided(0, command).is_err(), "{into:?}");
    }
    assert_eq!(contents(&region), vec![0; region.len()]);
    assert_eq!(bytes, [1; 64]);
}

#[test]
fn memory_for_messages_is_given_again_when_entries_have_run_out_meanwhile() {
    let mut process = command("portals crowded", 0, "", 0);
    process.env(NETWORK, "crowded");
    let mut child = process.env(LIMITS, "max_entries=128").spawn().unwrap();
    assert!(end_of(&mut child).success());
}

/// Runs in its own process, whose libraries have few entries.
pub(crate) fn receive_again_after_entries_ran_out() {
    for family in FAMILIES {
        // Two slabs, each filled by two such messages.
        let little = world(2, family, little_room);
        starve(little, 2, 60_000, 2);
    }
}

/// Takes all free entries for other memory whenever the memory for messages is full.
fn starve(drivers: Vec<Box<dyn Driver>>, count: usize, len: usize, times: usize) {
    let mut world = World::from_drivers(drivers);
    world.meet();
    let mut regions = Vec::new();
    for _ in 0..times {
        regions.extend(all_entries(&mut world[1]));
        (0..count).for_each(|_| world.send(0, 1, b"fills", &vec![7; len]));
        world.carry(0);
        regions.extend(all_entries(&mut world[1]));
        world.hears(1, count);
        world.settle();
        let armed = world[1].driver.arm();
        assert_eq!(armed, ArmResult::Ready, "after {count} of {len}");
        world[1].heard.messages.clear();
    }
    world.send(0, 1, b"waits", b"");
    (0..100).for_each(|_| _ = world.turn());
    assert!(world[1].heard.messages.is_empty(), "there was room left");
    drop(regions);
    world.hears(1, 1);
}

#[test]
fn peers_are_given_up_when_a_library_loses_what_they_sent() {
    let mut process = command("portals careless", 0, "", 0);
    process.env(NETWORK, "careless");
    let mut child = process
        .env("RIPSTOP_PORTALS_FLOW", "entries")
        .spawn()
        .unwrap();
    assert!(end_of(&mut child).success());
}

/// Runs in its own process, whose libraries lose events of messages when a queue is full.
pub(crate) fn lose_what_peers_sent() {
    const SENDERS: usize = 24;
    for family in FAMILIES {
        let mut world = World::from_drivers(world(1 + SENDERS as u32, family, little_room));
        // Together more messages than the queue has room for.
        for number in 0..4 {
            (1..=SENDERS).for_each(|from| world.send(from, 0, &[number], b""));
        }
        (1..=SENDERS).for_each(|from| world.carry(from));
        world.until("the end of all peers", |world| {
            world[0].heard.down.len() == SENDERS
        });
        let heard = &world[0].heard;
        assert!(heard.down.iter().all(|(_, how)| *how == DownCause::Failed));
        for from in 1..=SENDERS {
            let came = heard.from(from).map(|message| message.header[0]);
            assert!(
                came.zip(0..).all(|(came, number)| came == number),
                "not the first ones"
            );
        }
    }
}

/// Allocates memory until there are no more entries.
fn all_entries(rank: &mut Rank) -> Vec<MemoryRegion> {
    std::iter::from_fn(|| rank.driver.allocate(4096).ok()).collect()
}
