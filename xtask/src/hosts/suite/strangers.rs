//! Strangers that connect to the ports of ranks: the job goes on, and its results are right.

use std::{
    env,
    io::Write,
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    process::{self, Child},
    time::Duration,
};

use super::{
    HostsCase,
    view::{HostsView, before_the_end, ends, is_over, start, wait_under},
};

pub(super) const CASES: &[HostsCase] = &[
    HostsCase {
        name: "strangers that connect to the ranks and send garbage do no harm",
        run: |world| strangers(world, &[]),
    },
    HostsCase {
        name: "strangers do no harm, with epoll",
        run: |world| strangers(world, &[("RIPSTOP_REACTOR", "epoll")]),
    },
];

fn strangers(world: &HostsView, variables: &[(&str, &str)]) -> Result<(), String> {
    let seed = seed();
    let with_seed = |why| format!("SEED={seed}: {why}");
    before_the_end(|seconds| visit(world, variables, seed, seconds)).map_err(with_seed)
}

/// Lets strangers connect to the ranks of a job. Returns true if all have before the job ended.
fn visit(
    world: &HostsView,
    variables: &[(&str, &str)],
    seed: u64,
    seconds: u32,
) -> Result<bool, String> {
    let arguments = format!("--seconds {seconds}");
    let mut job = world.job("--hosts h1:2,h2:2", "examples/ring", &arguments);
    job.envs(variables.iter().copied());
    let mut job = start(job)?;
    let visited = connect_all(world, seed, &mut job);
    let is_over = is_over(&mut job)?;
    ends(job, 0, &[])?;
    if is_over {
        return Ok(false);
    }
    let (connected, silent) = visited?;
    drop(silent);
    if connected < GARBAGE * 4 {
        return Err(format!("only {connected} strangers were connected"));
    }
    Ok(true)
}

/// Connects strangers to all ranks. Returns how many were connected, and those that keep silent and stay.
fn connect_all(
    world: &HostsView,
    mut random: u64,
    job: &mut Child,
) -> Result<(usize, Vec<TcpStream>), String> {
    let hosts = ["h1", "h2"];
    world.in_mid_job(job, &hosts)?;
    let mut silent = Vec::new();
    let mut connected = 0;
    for host in hosts {
        for address in listening(world, host, job)? {
            for garbage in garbage(&mut random) {
                let Ok(mut stranger) = TcpStream::connect_timeout(&address, PATIENCE) else {
                    continue; // It listens at another address of the host.
                };
                connected += 1;
                // The rank may close the connection before it has read everything.
                let _ = stranger.write_all(&garbage);
                if garbage.len() < 32 {
                    silent.push(stranger);
                }
            }
        }
    }
    Ok((connected, silent))
}

/// Returns the addresses at which the ranks of a host may listen.
fn listening(world: &HostsView, host: &str, job: &mut Child) -> Result<Vec<SocketAddr>, String> {
    let mut ports = wait_under(job, "ranks that listen", || {
        let sockets = world.sockets(host)?;
        let listening = sockets.iter().filter(|socket| socket.listens);
        let ports: Vec<u16> = listening.map(|socket| socket.local_port).collect();
        Ok((ports.len() >= 2).then_some(ports))
    })?;
    ports.sort_unstable();
    ports.dedup();
    let found = (host, 0)
        .to_socket_addrs()
        .map_err(|why| format!("{host}: {why}"))?;
    let mut hosts: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    hosts.dedup();
    let all = hosts
        .iter()
        .flat_map(|host| ports.iter().map(|port| SocketAddr::new(*host, *port)));
    Ok(all.collect())
}

/// Returns what strangers say: nothing, a web browser's request, the beginning of a hello with anything behind it, anything.
fn garbage(random: &mut u64) -> [Vec<u8>; GARBAGE] {
    [
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: h1\r\n\r\n".to_vec(),
        MAGIC.to_vec(),
        [MAGIC.to_vec(), bytes(random, 56)].concat(),
        [MAGIC.to_vec(), bytes(random, 4096)].concat(),
        bytes(random, 65_536),
    ]
}

/// The first bytes of a hello between ranks.
const MAGIC: &[u8] = b"\xb5RipTCP\n";

/// The number of connections that strangers make to each port.
const GARBAGE: usize = 6;

const PATIENCE: Duration = Duration::from_secs(5);

fn bytes(random: &mut u64, count: usize) -> Vec<u8> {
    let next = |_| {
        // A shift register, which is never zero.
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        random.to_le_bytes()[3]
    };
    (0..count).map(next).collect()
}

/// Returns the seed in `SEED`, or another one in each run.
fn seed() -> u64 {
    let given = env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed =
        given.unwrap_or_else(|| u64::from(process::id()).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    seed.max(1)
}
