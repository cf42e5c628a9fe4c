//! What is said of a Portals library that is missing, wrong or too small. Each in a process of its own, because a library reads
//! the environment, and one that was misunderstood is not to be used again.

use std::{
    env,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::Stdio,
};

use ripstop_fabric::portals::{Portals, PortalsConfig};

use crate::{
    portals::{FAMILIES, library},
    processes::{NETWORK, command, end_of},
};

const LIBRARY: &str = "RIPSTOP_PORTALS_LIBRARY";
const ABI: &str = "RIPSTOP_PORTALS_ABI";
const LIMITS: &str = "RIPSTOP_PORTALS_LIMITS";
/// What the error has to say, with bars between.
const WORDS: &str = "RIPSTOP_TEST_WORDS";

/// Opens a library with these variables, and looks for these words in the error.
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

/// In a process of its own.
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
        "lacks PtlInit, PtlNIInit|PtlSwap|not a whole Portals 4 library",
    );
}

#[test]
fn a_family_that_the_library_is_not_of_is_found_out_before_anything_is_sent() {
    for of in FAMILIES {
        for named in ["sandia42", "sandia43", "portails4", "bxi2", "bxi3"] {
            // Those two differ in nothing that a put that succeeds shows.
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
        ("max_msg_size=65536", "max_msg_size = 65536"),
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
fn who_starts_while_the_one_before_is_not_quite_gone_gets_another_process_id() {
    let mut process = command("portals squatted", 0, "", 0);
    let mut child = process.env(NETWORK, "squatted").spawn().unwrap();
    assert!(end_of(&mut child).success());
}

/// In a process of its own, on a network of its own.
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
    // The name of an interface that matches and is physical, without that of its process id.
    let name = format!("ripstop-portals/squatted/0/2/{nid}/{pid}");
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let _squatter = UnixDatagram::bind_addr(&name).unwrap();
    assert_ne!(open(), (nid, pid));
}
