//! Obstacles to opening a device are named, with a remedy. Each test runs in its own process, because the obstacle affects a
//! whole process: this program, told by `OPENING` what to do.

use std::{fs, process::Command, sync::Arc};

use ripstop_fabric::{
    counters::DriverStats,
    driver::{CommandFailure, CommandToken, DownCause, WorldRank},
    verbs::{DevicePort, Verbs, VerbsConfig},
};

use super::{
    cables::{cable, until_all_are_up},
    mesh::{all_meet, connect_all, prepare_at_once},
    put,
};
use crate::world::{World, contents, local, noise, peer};

/// Not a test: the entry point of such a process.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_process_that_opens_a_device() {
    match std::env::var("OPENING").as_deref() {
        Ok("a device") => opens(|_| ()),
        Ok("another address") => opens(|config| config.gid_index = vec![200]),
        Ok("two addresses") => opens(|config| {
            config.device = Some("rxe0,rxe1".to_owned());
            config.gid_index = vec![1, 200];
        }),
        Ok("what is left") => meets_a_limit(),
        Ok("all at once") => makes_too_few(),
        Ok("a registration") => registers_no_more(),
        _ => {}
    }
}

fn opens(change: fn(&mut VerbsConfig)) {
    let mut config = VerbsConfig::new(WorldRank(0), 1);
    config.device = Some("rxe0".to_owned());
    change(&mut config);
    let opened = Verbs::prepare(config).and_then(|prepared| {
        let address = prepared.address();
        prepared.connect(vec![address])
    });
    let why = opened.expect_err("something stands in the way");
    eprintln!("refused: {why}");
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_device_without_permission_is_reported_with_its_file() {
    let said = in_shell(
        "chmod 000 /dev/infiniband/uverbs0; setpriv --bounding-set -dac_override,-dac_read_search",
        "a device",
    );
    assert!(shell("chmod 666 /dev/infiniband/uverbs0").contains("status: 0"));
    names(
        &said,
        &["rxe0", "/dev/infiniband/uverbs", "readable and writable"],
    );
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_memory_lock_limit_is_reported_with_the_needed_size() {
    let said = in_shell(
        "ulimit -l 256; setpriv --bounding-set -ipc_lock",
        "a device",
    );
    names(
        &said,
        &[
            "KiB must be locked in addition to",
            "is 256 KiB",
            "memlock",
            "LimitMEMLOCK",
        ],
    );
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn an_address_that_the_port_does_not_have_is_named() {
    let said = in_shell("", "another address");
    names(&said, &["gid_index", "200", "rxe0:1"]);
}

/// The first of the two addresses is valid.
#[test]
#[ignore = "needs two RDMA devices: run it in the virtual machine"]
fn an_address_that_only_one_of_two_ports_does_not_have_is_named_with_that_port() {
    let said = in_shell("", "two addresses");
    names(&said, &["gid_index", "200", "rxe1:1"]);
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_port_that_is_down_is_named() {
    let said = in_shell("cable down 0;", "a device");
    assert!(shell("cable plug 0").contains("status: 0"));
    until_all_are_up();
    names(
        &said,
        &[
            "no port rxe0 is up",
            "rxe0:1 (down)",
            "RIPSTOP_VERBS_DEVICE",
        ],
    );
}

/// A port that was named is an error; otherwise the other ports are used.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_port_that_is_down_is_left_out_unless_it_was_named() {
    let others = DevicePort::all().unwrap().len() - 1;
    cable("down 0");
    let prepare = |place| {
        let mut config = VerbsConfig::new(WorldRank(0), 1);
        config.place = place;
        Verbs::prepare(config).map(|prepared| prepared.left_out().to_vec())
    };
    let left_out: Vec<_> = (0..3).map(prepare).collect();
    cable("plug 0");
    until_all_are_up();
    for left_out in left_out {
        let Ok(left_out) = left_out else {
            let why = left_out.unwrap_err().to_string();
            assert!(
                others == 0 && why.contains("none of the ports is up"),
                "{why}"
            );
            continue;
        };
        let names: Vec<_> = left_out.iter().map(DevicePort::to_string).collect();
        assert_eq!(names, ["rxe0:1"]);
    }
    assert!(prepare(0).unwrap().is_empty(), "all are up");
}

/// A container may limit the number of a device's objects.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_limit_on_device_objects_is_reported() {
    let few = format!("{GROUP} echo rxe0 hca_object=6 > {FOLDER}/rdma.max;");
    let said = in_shell(&few, "a device");
    names(&said, &["InfiniBand verbs: ", "rdma.max"]);
}

/// After the ranks were opened, there is no queue pair left for their connection.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_peer_without_a_queue_pair_counts_as_failed() {
    let said = in_shell(GROUP, "what is left");
    names(&said, &["told of it"]);
}

fn meets_a_limit() {
    let mut world = World::new(super::world_on_one_device, 2);
    let current = fs::read_to_string(format!("{FOLDER}/rdma.current")).unwrap();
    let device = current
        .lines()
        .find(|line| line.starts_with("rxe0 "))
        .unwrap();
    fs::write(format!("{FOLDER}/rdma.max"), device).unwrap();
    world.send(0, 1, b"never", b"");
    world.until("the failure", |world| {
        world[0].heard.down == [(peer(1), DownCause::Failed)]
    });
    eprintln!("refused: told of it");
}

/// After the ranks have connected, nothing more can be registered for a while.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_command_whose_memory_cannot_be_registered_fails_alone_and_the_next_may_go() {
    let said = in_shell(GROUP, "a registration");
    names(&said, &["registering", "KiB of memory", "rdma.max"]);
    assert!(said.contains("it goes on"), "{said}");
}

fn registers_no_more() {
    let mut world = World::new(super::world_on_one_device, 2);
    world.meet();
    let (region, key) = world[1].memory(LONG);
    let mut bytes = noise(1, LONG);
    let mut put = |world: &mut World| {
        let put = put(1, local(&mut bytes), key, CommandToken(1));
        world.one_sided(0, put)
    };
    limit(&objects().to_string());
    let Err(CommandFailure::Transport(why)) = put(&mut world) else {
        panic!("the limit is not in the way");
    };
    eprintln!("refused: {why}");
    let mut other = vec![0; LONG];
    assert!(world[0].driver.expose(local(&mut other)).is_none());
    // No rank is lost, and traffic that needs no registration continues.
    world.send(0, 1, b"still there", b"");
    world.hears(1, 1);
    limit("max");
    put(&mut world).unwrap();
    assert!(contents(&region)[..LONG] == noise(1, LONG));
    assert!(world[0].driver.expose(local(&mut other)).is_some());
    assert!((0..2).all(|rank| world[rank].heard.down.is_empty()));
    eprintln!("it goes on");
}

/// The last of three ranks that are connected at the start may not have a queue pair for each of the others.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_rank_that_finds_too_few_queue_pairs_at_the_start_is_connected_later() {
    let said = in_shell(GROUP, "all at once");
    assert!(said.contains("all have met"), "{said}");
}

fn makes_too_few() {
    let counters: Vec<_> = (0..3).map(|_| Arc::default()).collect();
    let prepare = |rank| {
        prepare_at_once(rank, &counters, |config| {
            config.device = Some("rxe0".to_owned())
        })
    };
    let before = objects();
    let first = prepare(0);
    let each = objects() - before;
    let second = prepare(1);
    limit(&(objects() + each - 1).to_string());
    let last = prepare(2);
    limit("max");
    let doors = [&first, &second, &last].map(|rank| rank.address().len() > 48);
    assert_eq!(doors, [true, true, false]);
    let mut world = World::from_drivers(connect_all(vec![first, second, last]));
    all_meet(&mut world, 3);
    assert!(
        counters
            .iter()
            .all(|one: &Arc<DriverStats>| one.connecting.get() > 0)
    );
    eprintln!("all have met");
}

/// Returns how many objects of the device the control group has.
fn objects() -> u32 {
    let current = fs::read_to_string(format!("{FOLDER}/rdma.current")).unwrap();
    let device = current.lines().find(|line| line.starts_with("rxe0 "));
    let objects = device.and_then(|line| line.split_once("hca_object="));
    objects.map_or(0, |(_, count)| count.trim().parse().unwrap())
}

fn limit(objects: &str) {
    let device = format!("rxe0 hca_handle=max hca_object={objects}");
    fs::write(format!("{FOLDER}/rdma.max"), device).unwrap();
}

/// Runs this program with this task after the shell command `before`.
fn in_shell(before: &str, what: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let said = shell(&format!(
        "export OPENING='{what}'; {before} '{}' --ignored --exact --nocapture {THIS}::a_process_that_opens_a_device",
        program.display()
    ));
    assert!(said.contains("1 passed"), "{said}");
    said
}

fn shell(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{err}{}", output.status)
}

#[track_caller]
fn names(said: &str, words: &[&str]) {
    let refused = said.lines().find(|line| line.contains("refused: "));
    let refused = refused.unwrap_or_else(|| panic!("it was not refused: {said}"));
    for word in words {
        assert!(refused.contains(word), "no {word:?} in {refused}");
    }
}

/// Shell commands that make a control group and enter it.
const GROUP: &str = "mountpoint -q /sys/fs/cgroup || mount -t cgroup2 none /sys/fs/cgroup; \
    echo +rdma > /sys/fs/cgroup/cgroup.subtree_control; mkdir -p /sys/fs/cgroup/few; \
    echo rxe0 hca_handle=max hca_object=max > /sys/fs/cgroup/few/rdma.max; echo $$ > /sys/fs/cgroup/few/cgroup.procs;";
const FOLDER: &str = "/sys/fs/cgroup/few";

const LONG: usize = 1 << 20;
const THIS: &str = "verbs::opening";
