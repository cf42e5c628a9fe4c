//! Networks and kernels of hosts that lack something. Packets are lost, hosts have packets of different lengths, an interface
//! leads nowhere, a listener keeps few connections, no port is free, and all ranks of two crowded hosts talk to all. The job ends
//! well, or with an error.

use std::{
    env,
    process::{Command, Stdio},
};

use super::{
    HostsCase,
    faults::spoil_link,
    measured::measure,
    view::{HostsView, ends, start},
};

pub(super) const CASES: &[HostsCase] = &[
    HostsCase {
        name: "a link that loses some packets is only a delay",
        run: |world| spoil_link(world, "cable lose h2 10"),
    },
    HostsCase {
        name: "hosts with packets of different lengths",
        run: |world| {
            let lengths = |length: u32| {
                world.tool(&format!("ip -n h1 link set eth0 mtu {length}"))?;
                world.tool(&format!("ip -n switch link set h1 mtu {length}"))
            };
            let ended = lengths(9000).and_then(|()| halo(world));
            lengths(1500).and(ended)
        },
    },
    HostsCase {
        name: "hosts with two interfaces, of which one leads nowhere",
        run: |world| {
            let hosts = ["h1", "h2"];
            let added = hosts.iter().try_for_each(|host| add_dead(world, host));
            let ended = added.and_then(|()| {
                let mut job = world.job("--hosts h1:2,h2:2", "examples/hello", "");
                job.env("RIPSTOP_LOG", "ripstop::fabric=info");
                ends(start(job)?, 0, &["eth1"])
            });
            let mended = hosts
                .iter()
                .try_for_each(|host| world.tool(&format!("ip -n {host} link del eth1")));
            ended.and(mended)
        },
    },
    HostsCase {
        name: "listeners that keep one connection delay the start",
        run: |world| {
            let kept = |host: &str| KernelSetting::set(host, "net/core/somaxconn", "1");
            let Some(_kept) = both(kept)? else {
                return Ok(());
            };
            let words = "perf collective all_to_all --size 8 --iters 1";
            let mut job = world.job("--hosts h1:8,h2:8", "ripstop", words);
            job.env("RIPSTOP_LOG", "warn,ripstop::fabric=info");
            ends(start(job)?, 0, &["raise net.core.somaxconn"]).map(drop)
        },
    },
    HostsCase {
        name: "a host without a free port is reached by the other",
        run: |world| {
            let Some(_port) = only_port("h1", 40_000)? else {
                return Ok(());
            };
            let job = world.job("--hosts h1,h2", "examples/hello", "");
            ends(start(job)?, 0, &[]).map(drop)
        },
    },
    HostsCase {
        name: "a job on two hosts without a free port ends with an error",
        run: |world| {
            // Another port than in the case before, whose last connection may still hold that one for a minute.
            let Some(_ports) = both(|host| only_port(host, 40_001))? else {
                return Ok(());
            };
            let mut job = world.job("--hosts h1,h2", "examples/ring", "--seconds 1");
            job.env("RIPSTOP_BOOT_TIMEOUT", "2");
            // The code of an error that another rank has caused, and not that of the job's time limit.
            ends(start(job)?, 75, &["recv with rank "]).map(drop)
        },
    },
    HostsCase {
        name: "all ranks of two hosts with 128 each talk to all",
        run: |world| {
            let words = "collective all_to_all --size 8 --iters 1";
            measure(world, "h1:128,h2:128", words, 1)
        },
    },
];

/// Gives a host a second interface, whose cable ends in a switch that passes nothing on.
fn add_dead(world: &HostsView, host: &str) -> Result<(), String> {
    let number = host.trim_start_matches('h');
    world.tool(&format!(
        "ip -n {host} link add eth1 type veth peer name dead{number} netns switch"
    ))?;
    world.tool(&format!(
        "ip -n {host} addr add 10.98.0.{number}/24 dev eth1"
    ))?;
    world.tool(&format!("ip -n {host} link set eth1 up"))?;
    world.tool(&format!("ip -n switch link set dead{number} up"))
}

fn halo(world: &HostsView) -> Result<(), String> {
    let job = world.job("--hosts h1:2,h2:2", "examples/halo", "--n 32 --steps 20");
    ends(start(job)?, 0, &[]).map(drop)
}

/// Leaves a host one port for connections of its own. The ranks there listen at it, so none is left.
fn only_port(host: &str, port: u16) -> Result<Option<KernelSetting>, String> {
    let range = format!("{port} {port}");
    KernelSetting::set(host, "net/ipv4/ip_local_port_range", &range)
}

fn both(
    set: impl Fn(&str) -> Result<Option<KernelSetting>, String>,
) -> Result<Option<[KernelSetting; 2]>, String> {
    let (first, second) = (set("h1")?, set("h2")?);
    Ok(first.zip(second).map(|(first, second)| [first, second]))
}

/// A setting of a host's network, which has its former value again when this is dropped.
struct KernelSetting {
    host: String,
    name: &'static str,
    before: String,
}

impl KernelSetting {
    /// Sets it, or says that this user may not and returns `None`: some kernels let only root do so. With `CI` set, that is an
    /// error.
    fn set(host: &str, name: &'static str, value: &str) -> Result<Option<Self>, String> {
        let Ok(before) = on(
            host,
            &format!("cat /proc/sys/{name} && test -w /proc/sys/{name}"),
        ) else {
            let why = format!("this user may not set {name} of a host");
            if env::var_os("CI").is_some() {
                return Err(why);
            }
            println!("LEFT OUT: {why}");
            return Ok(None);
        };
        let setting = Self {
            host: host.to_owned(),
            name,
            before: before.trim().to_owned(),
        };
        setting.write(value)?;
        Ok(Some(setting))
    }

    fn write(&self, value: &str) -> Result<(), String> {
        on(
            &self.host,
            &format!("echo {value} >/proc/sys/{}", self.name),
        )
        .map(drop)
    }
}

impl Drop for KernelSetting {
    fn drop(&mut self) {
        if let Err(why) = self.write(&self.before) {
            println!("{why}");
        }
    }
}

/// Runs a line of the shell on a host. Returns its output.
fn on(host: &str, line: &str) -> Result<String, String> {
    let ended = Command::new("on")
        .args([host, "sh", "-c", line])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("`on {host}`: {why}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if ended.status.success() {
        return Ok(text(&ended.stdout));
    }
    Err(format!(
        "`{line}` on {host}: {} {}",
        ended.status,
        text(&ended.stderr)
    ))
}
