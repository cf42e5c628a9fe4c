//! What the kernel counts: of a device, and of this process.

use std::fs;

use ripstop_fabric::verbs::Port;

/// The sum over all devices of a counter of theirs, like `send_rnr_err`.
pub(super) fn of_devices(name: &str) -> u64 {
    let ports = Port::all().unwrap();
    ports.iter().map(|port| of_device(&port.device, name)).sum()
}

/// A counter of one device, as it is now: the kernel says for some milliseconds what it has said before, if it may.
pub(super) fn of_device(device: &str, name: &str) -> u64 {
    let folder = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
    let lifespan = format!("{folder}/lifespan");
    fs::write(&lifespan, "0").unwrap_or_else(|why| panic!("{lifespan}: {why}"));
    let file = format!("{folder}/{name}");
    let text = fs::read_to_string(&file).unwrap_or_else(|why| panic!("{file}: {why}"));
    text.trim().parse().unwrap()
}

/// Descriptors that this process has open.
pub(super) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Memory of this process that stays where it is because a device uses it, in KiB.
pub(super) fn pinned_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let figure = line.unwrap().trim().trim_end_matches("kB").trim();
    figure.parse().unwrap()
}

/// How many queue pairs, completion queues and registrations there are on all devices, as `rdma resource` prints them, without
/// those of the kernel itself.
pub(super) fn resources() -> String {
    let printed = std::process::Command::new("rdma")
        .arg("resource")
        .output()
        .unwrap();
    String::from_utf8(printed.stdout).unwrap()
}
