//! Ranks, hosts, links and launchers that fail: the job ends, names the cause, and leaves nothing on any host.

use std::{
    io::{BufRead, BufReader},
    process::Child,
    thread,
    time::Duration,
};

use super::{
    HostsCase,
    view::{HostsView, before_the_end, ends, is_over, start, wait_for, wait_under},
};

/// Time after a SIGQUIT within which the launcher passes the next one on to the ranks, and a little more.
const QUIT_PAUSE: Duration = Duration::from_millis(2200);

pub(super) const CASES: &[HostsCase] = &[
    HostsCase {
        name: "a rank that is killed on another host is named with its host",
        run: killed_rank,
    },
    HostsCase {
        name: "a rank that is stopped on another host is named in the report of SIGQUIT",
        run: stopped_rank,
    },
    HostsCase {
        name: "a launcher that is killed leaves nothing on any host",
        run: killed_launcher,
    },
    HostsCase {
        name: "a link that comes back is only a delay",
        run: |world| spoil_link(world, "cable pull h2"),
    },
    HostsCase {
        name: "a host whose link is cut is named, and ends its ranks by itself",
        run: lost_link,
    },
    HostsCase {
        name: "a host that dies is named with its ranks",
        run: dead_host,
    },
];

fn killed_rank(world: &HostsView) -> Result<(), String> {
    let mut job = endless(world, "h1:2,h2:2")?;
    world.in_mid_job(&mut job, &["h1", "h2"])?;
    kill(world, "h2")?;
    let expected = [" on h2) was killed by signal 9 (SIGKILL)"];
    ends(job, 137, &expected).map(drop)
}

fn stopped_rank(world: &HostsView) -> Result<(), String> {
    let mut job = endless(world, "h1:2,h2:2")?;
    world.in_mid_job(&mut job, &["h1", "h2"])?;
    let ranks = world.ranks("h2")?;
    let rank = ranks.first().ok_or("h2 has no rank")?;
    world.tool(&format!("kill -STOP {}", rank.pid))?;
    let errors = job.stderr.take().ok_or("the job has no standard error")?;
    let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
    let parts = [
        " is stopped (SIGSTOP or a debugger): kill -CONT ",
        " on h2; ",
    ];
    let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
    let mut last = None;
    loop {
        world.tool(&format!("kill -QUIT {}", job.id()))?;
        let verdict =
            lines.find(|line| line.starts_with("verdict: ") || line.starts_with("not stuck: "));
        match verdict {
            // The other ranks still moved between the two looks, or a host of a busy machine answered too late. The time limit
            // ends the job, and then there are no more lines.
            Some(line) if !is_it(&line) => last = Some(line),
            Some(_) => break,
            None => {
                return Err(format!(
                    "no report at SIGQUIT names the stopped rank; the last one is {last:?}"
                ));
            }
        }
        thread::park_timeout(QUIT_PAUSE);
    }
    world.tool(&format!("kill -9 {}", rank.pid))?;
    let is_gone = lines.any(|line| line.contains(" on h2) was killed by signal 9 (SIGKILL)"));
    job.wait().map_err(|why| format!("the launcher: {why}"))?;
    if is_gone {
        Ok(())
    } else {
        Err("the launcher does not say that the rank was killed".to_owned())
    }
}

fn killed_launcher(world: &HostsView) -> Result<(), String> {
    let mut job = endless(world, "h1:2,h2:2")?;
    world.in_mid_job(&mut job, &["h1", "h2"])?;
    job.kill()
        .map_err(|why| format!("killing the launcher: {why}"))?;
    job.wait().map_err(|why| format!("the launcher: {why}"))?;
    world.leaves_nothing()
}

/// Spoils the cable of h2 under a job until a segment had to be sent again, which is less than a host's time limit.
pub(super) fn spoil_link(world: &HostsView, spoil: &str) -> Result<(), String> {
    before_the_end(|seconds| {
        let arguments = format!("--seconds {seconds}");
        let mut job = start(world.job("--hosts h1:2,h2:2", "examples/ring", &arguments))?;
        let spoiled = spoil_until_lost(world, spoil, &mut job);
        let is_over = is_over(&mut job)?;
        // The cable and the job are ended also after an error: other cases follow.
        let mended = world.tool("cable plug h2");
        let ended = ends(job, 0, &[]);
        mended.and(ended)?;
        if is_over {
            Ok(false)
        } else {
            spoiled.map(|()| true)
        }
    })
}

/// Spoils the cable of h2, and returns when a segment that it lost was sent again, by either side.
fn spoil_until_lost(world: &HostsView, spoil: &str, job: &mut Child) -> Result<(), String> {
    let hosts = ["h1", "h2"];
    world.in_mid_job(job, &hosts)?;
    let before = world.sent_again(&hosts)?;
    world.tool(spoil)?;
    wait_under(job, "a segment that is sent again", || {
        Ok((world.sent_again(&hosts)? > before).then_some(()))
    })
}

fn lost_link(world: &HostsView) -> Result<(), String> {
    let mut job = endless(world, "h1:2,h2:2")?;
    world.in_mid_job(&mut job, &["h1", "h2"])?;
    world.tool("cable pull h2")?;
    let ended = ends(
        job,
        125,
        &["host h2 is lost with ranks 2 and 3: gave no sign for 4 s"],
    );
    // The host is still cut off, so it must have found out by itself.
    let alone = wait_for("h2 to end its ranks", || {
        Ok(world.ours("h2")?.is_empty().then_some(()))
    });
    world.tool("cable plug h2")?;
    ended?;
    alone?;
    world.leaves_nothing()?;
    ends(
        start(world.job("--hosts h1,h2", "examples/hello", ""))?,
        0,
        &[],
    )
    .map(drop)
}

fn dead_host(world: &HostsView) -> Result<(), String> {
    let mut job = endless(world, "h3:2,h4:2")?;
    world.in_mid_job(&mut job, &["h3", "h4"])?;
    world.tool("power off h4")?;
    let ended = ends(
        job,
        125,
        &["host h4 is lost with ranks 2 and 3: the connection ended"],
    );
    world.tool("power on h4")?;
    ended.map(drop)
}

/// Starts a job that ends only by a failure.
fn endless(world: &HostsView, hosts: &str) -> Result<Child, String> {
    let options = format!("--hosts {hosts} --host-timeout 4");
    start(world.job(&options, "examples/ring", "--seconds 1000"))
}

/// Kills one rank of a host.
fn kill(world: &HostsView, host: &str) -> Result<(), String> {
    let ranks = world.ranks(host)?;
    let rank = ranks.first().ok_or_else(|| format!("{host} has no rank"))?;
    world.tool(&format!("kill -9 {}", rank.pid))
}
