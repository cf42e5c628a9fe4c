//! Strangers that connect to the ports of ranks: the job goes on, and its results are right.

use std::{
    env,
    io::Write,
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    process,
    time::Duration,
};

use super::{
    HostsCase,
    view::{HostsView, ends, start, wait_for},
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
    let mut job = world.job("--hosts h1:2,h2:2", "examples/ring", "--seconds 2");
    job.envs(variables.iter().copied());
    let mut job = start(job)?;
    world.in_mid_job(&["h1", "h2"])?;
    let mut random = seed;
    let mut silent = Vec::new();
    let mut connected = 0;
    for host in ["h1", "h2"] {
        for address in listening(world, host)? {
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
    let is_over = job
        .try_wait()
        .map_err(|why| format!("the job: {why}"))?
        .is_some();
    let ended = ends(job, 0, &[]).map_err(|why| format!("SEED={seed}: {why}"));
    drop(silent);
    ended?;
    if is_over || connected < GARBAGE * 4 {
        return Err(format!(
            "only {connected} strangers were connected before the job ended (has it ended: {is_over})"
        ));
    }
    Ok(())
}

/// Returns the addresses at which the ranks of a host may listen.
fn listening(world: &HostsView, host: &str) -> Result<Vec<SocketAddr>, String> {
    let mut ports = wait_for("ranks that listen", || {
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
