//! Counts of the kernel: of a device, and of this process.

use std::fs;

use ripstop_fabric::verbs::DevicePort;

/// Returns the sum of a counter, such as `send_rnr_err`, over all devices.
pub(super) fn of_devices(name: &str) -> u64 {
    let ports = DevicePort::all().unwrap();
    ports.iter().map(|port| of_device(&port.device, name)).sum()
}

/// Returns the current value of a device's counter. If allowed, the kernel repeats an old value for some milliseconds.
pub(super) fn of_device(device: &str, name: &str) -> u64 {
    let folder = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
    let lifespan = format!("{folder}/lifespan");
    fs::write(&lifespan, "0").unwrap_or_else(|why| panic!("{lifespan}: {why}"));
    let file = format!("{folder}/{name}");
    let text = fs::read_to_string(&file).unwrap_or_else(|why| panic!("{file}: {why}"));
    text.trim().parse().unwrap()
}

/// Returns how many descriptors this process has open.
pub(super) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns how much memory of this process is pinned for devices, in KiB.
pub(super) fn pinned_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let figure = line.unwrap().trim().trim_end_matches("kB").trim();
    figure.parse().unwrap()
}

/// Returns the numbers of queue pairs, completion queues and registrations on all devices, as printed by `rdma resource`, without
/// those of the kernel itself.
pub(super) fn resources() -> String {
    let printed = std::process::Command::new("rdma")
        .arg("resource")
        .output()
        .unwrap();
    String::from_utf8(printed.stdout).unwrap()
}
