//! Jobs that end well: the examples check their own results.

use super::{
    HostsCase,
    view::{HostsView, ends, start},
};

pub(super) const CASES: &[HostsCase] = &[
    HostsCase {
        name: "a job without a setting, which says that its hosts are connected by TCP",
        run: |world| {
            let mut job = world.job("--hosts h1:2,h2:2", "examples/hello", "");
            job.env("RIPSTOP_LOG", "info");
            let chosen = "rank 0: info: shm+tcp: some ranks do not share memory";
            ends(start(job)?, 0, &[chosen]).map(drop)
        },
    },
    HostsCase {
        name: "examples on two ranks of each of two hosts",
        run: |world| examples(world, "--hosts h1:2,h2:2", &[]),
    },
    HostsCase {
        name: "examples on two ranks of each of two hosts, with epoll",
        run: |world| examples(world, "--hosts h1:2,h2:2", &[("RIPSTOP_REACTOR", "epoll")]),
    },
    HostsCase {
        name: "examples on four hosts, without shared memory",
        run: |world| examples(world, "--hosts h[1-4]", &[("RIPSTOP_FABRIC", "tcp")]),
    },
    HostsCase {
        name: "seismic waves, by messages and by windows",
        run: |world| {
            let arguments = "--n 16 --steps 8 --mode all --check";
            let job = world.job("--hosts h1:2,h2:2", "examples/awp", arguments);
            ends(start(job)?, 0, &[]).map(drop)
        },
    },
];

fn examples(world: &HostsView, hosts: &str, variables: &[(&str, &str)]) -> Result<(), String> {
    for (program, arguments) in EXAMPLES {
        let mut job = world.job(hosts, program, arguments);
        job.envs(variables.iter().copied());
        ends(start(job)?, 0, &[]).map_err(|why| format!("{program}: {why}"))?;
    }
    Ok(())
}

/// Examples, with arguments that make the run short.
const EXAMPLES: [(&str, &str); 3] = [
    ("examples/hello", ""),
    ("examples/halo", "--n 16 --steps 20"),
    ("examples/p3dfft", "--n 16 --vars 1 --iters 1"),
];
