//! TCP over the loopback interface, and between hosts: plain sockets, the MPI libraries made to use TCP, and Ripstop's driver.

use super::contestant::Contestant;
use super::figures::{
    BetterDirection, CompareJob, CompareRow, FigureSelector, OwnProgram, RatioTarget, overlap_rows,
    split_words,
};

/// The name of these jobs.
pub(super) const GROUP: &str = "tcp";

const LIBRARIES: [Contestant; 3] = [
    Contestant::MpichTcp,
    Contestant::OpenMpiTcp,
    Contestant::OpenMpiUcx,
];

/// Columns of the table, before Ripstop's.
const COLUMNS: &[Contestant] = &[
    Contestant::Sockets,
    Contestant::MpichTcp,
    Contestant::OpenMpiTcp,
    Contestant::OpenMpiUcx,
];

/// Returns the jobs over the loopback interface.
pub(super) fn jobs() -> Vec<CompareJob> {
    let mut jobs = jobs_with(1.15, 0.95);
    jobs.extend([idle_peers(), strangers()]);
    jobs
}

/// Returns the same jobs, except that of idle peers, between hosts, where the way of a packet is longer for all, and those that
/// are only there: ranks that share memory, a halo, a rank that is killed, and the start of a job on 3 and on 32 hosts.
pub(super) fn jobs_between_hosts() -> Vec<CompareJob> {
    let mut jobs = jobs_with(1.12, 0.97);
    let strangers = CompareJob {
        per_host: 32,
        ..strangers()
    };
    jobs.extend([all_to_all(), halo(), strangers, death()]);
    jobs.extend([start(), start_of_many()]);
    for job in &mut jobs {
        job.between_hosts = true;
        for row in &mut job.rows {
            row.label.push_str(BETWEEN_HOSTS);
        }
    }
    jobs
}

/// What the names of jobs and rows between hosts end with.
pub(super) const BETWEEN_HOSTS: &str = ", between hosts";

/// The arguments are limits of the latency beside that of plain sockets and of MPICH.
fn jobs_with(of_sockets: f64, of_mpich: f64) -> Vec<CompareJob> {
    vec![
        latency(of_sockets, of_mpich),
        rate(),
        bandwidth(65_536, "64 KiB", 32, 1.5),
        bandwidth(1_048_576, "1 MiB", 16, 1.0),
        all_reduce(),
        one_core(),
        overlap(),
    ]
}

/// MPICH's launcher and ours start a program on hosts that ssh reaches.
fn start() -> CompareJob {
    let pick = FigureSelector::new("wall", "wall_ms", BetterDirection::Lower);
    let rows = vec![
        beside("start, 3 ranks", &pick, Contestant::MpichTcp, 1.0),
        beside("start, 3 ranks", &pick, Contestant::OpenMpiTcp, 0.6),
    ];
    let mut job = job("", rows).on(3);
    job.contestants = vec![
        Contestant::MpichTcp,
        Contestant::OpenMpiTcp,
        Contestant::OursTcp,
    ];
    CompareJob {
        peer_program: Some("startup"),
        // Crossing connections hang MPICH.
        peer_args: split_words("--in-turn"),
        ours: OwnProgram::Example("hello"),
        our_args: Vec::new(),
        ..job
    }
}

/// Compares with as many plain calls of `ssh`, which is the least that a start by `ssh` can take.
fn start_of_many() -> CompareJob {
    let pick = FigureSelector::new("wall", "wall_ms", BetterDirection::Lower);
    let row = beside("start, 32 hosts", &pick, Contestant::PlainSsh, 1.2);
    CompareJob {
        contestants: vec![Contestant::PlainSsh, Contestant::OursTcp],
        columns: &[Contestant::PlainSsh],
        peer_program: None,
        ours: OwnProgram::Example("hello"),
        our_args: Vec::new(),
        repeats_max: 3,
        ..job("", vec![row]).on(32)
    }
}

/// Compares an exchange between ranks of which two each share memory.
fn all_to_all() -> CompareJob {
    let pick = FigureSelector::new("collective", "mean_us", BetterDirection::Lower)
        .with("collective", "all_to_all")
        .with("size", 65_536);
    let row = beside_libraries("tcp all_to_all 64 KiB, 2 × 2 ranks", &pick, 0.8);
    // Waiting ranks of the libraries keep the processors that others need, so a call takes milliseconds.
    let args = "all_to_all --size 65536 --iters 50";
    let mut job = job(&format!("collective {args}"), vec![row]).on(4);
    job.contestants.retain(|who| *who != Contestant::Sockets);
    CompareJob {
        peer_program: Some("collective"),
        peer_args: split_words(args),
        per_host: 2,
        ..job
    }
}

fn halo() -> CompareJob {
    let pick = FigureSelector::new("halo", "median_us", BetterDirection::Lower).with("n", 64);
    let mut row = beside_libraries("tcp halo 64, whole step", &pick, 0.9);
    row.ours = pick.with("mode", "overlap");
    let args = "--n 64 --steps 1000";
    let mut job = job("", vec![row]);
    job.contestants.retain(|who| *who != Contestant::Sockets);
    CompareJob {
        peer_program: Some("halo"),
        peer_args: split_words(args),
        ours: OwnProgram::Example("halo"),
        our_args: split_words(&format!("{args} --mode overlap --json")),
        ..job
    }
}

fn overlap() -> CompareJob {
    let rows = overlap_rows("tcp ").into_iter();
    let rows = rows.map(|row| row.by(Contestant::OursTcp)).collect();
    by_ours("overlap", rows)
}

/// Memory of a rank for each peer to which it is connected and from which nothing comes.
fn idle_peers() -> CompareJob {
    let pick = FigureSelector::new("idle", "kib_per_peer", BetterDirection::Lower);
    let label = "tcp memory for each idle peer, KiB, 32 ranks";
    by_ours("idle --seconds 1", vec![alone(label, &pick, 4.0)]).on(32)
}

/// The first message to a rank, and about 1000 connections at once, between 2 × 32 ranks.
fn strangers() -> CompareJob {
    let pick = |figure| FigureSelector::new("meet", figure, BetterDirection::Lower);
    let rows = vec![
        alone(
            "tcp first message to a rank and its answer, µs",
            &pick("first_us"),
            500.0,
        ),
        alone(
            "tcp connections of 32 ranks with 32 others, ms",
            &pick("connect_ms"),
            1000.0,
        ),
    ];
    by_ours("meet", rows).on(64)
}

/// Time until a rank knows that a rank of another host was killed. Those of its own host are seen to end.
fn death() -> CompareJob {
    let pick = FigureSelector::new("death", "notice_ms", BetterDirection::Lower);
    let row = alone("tcp notice of a killed rank, ms", &pick, 50.0);
    CompareJob {
        our_launch: &["--keep-going=ok"],
        ..by_ours("death", vec![row])
    }
}

fn latency(of_sockets: f64, of_mpich: f64) -> CompareJob {
    let pick = |size: u64| {
        FigureSelector::new("latency", "median_us", BetterDirection::Lower).with("size", size)
    };
    let sockets = |name| beside(name, &pick(8), Contestant::Sockets, of_sockets);
    let rows = vec![
        sockets("tcp latency 8 B"),
        sockets("tcp latency 8 B, inline").by(Contestant::OursTcpInline),
        beside("tcp latency 8 B", &pick(8), Contestant::MpichTcp, of_mpich),
        beside("tcp latency 8 B", &pick(8), Contestant::OpenMpiTcp, 0.85),
        beside_libraries("tcp latency 64 KiB", &pick(65_536), 0.5),
    ];
    let mut job = job("latency --size 8,65536", rows);
    job.contestants.push(Contestant::OursTcpInline);
    job
}

fn rate() -> CompareJob {
    let pick = FigureSelector::new("rate", "million_per_s", BetterDirection::Higher);
    let label = "tcp rate 8 B, window 64";
    let rows = vec![
        beside(label, &pick, Contestant::MpichTcp, 5.0),
        alone(label, &pick, 1.0),
    ];
    job("rate", rows)
}

fn bandwidth(size: u64, name: &str, window: u32, limit: f64) -> CompareJob {
    let pick =
        FigureSelector::new("bandwidth", "mb_per_s", BetterDirection::Higher).with("size", size);
    let label = format!("tcp bandwidth {name}, window {window}");
    let cpu =
        FigureSelector::new("bandwidth", "cpu_s_per_gb", BetterDirection::Lower).with("size", size);
    let label_of_cpu = format!("tcp CPU seconds for a GB, {name}, window {window}");
    let rows = vec![
        beside_libraries(&label, &pick, limit),
        beside(&label, &pick, Contestant::Sockets, 0.85),
        beside(&label_of_cpu, &cpu, Contestant::Sockets, 1.2),
    ];
    job(&format!("bandwidth --size {size} --window {window}"), rows)
}

fn all_reduce() -> CompareJob {
    let pick = FigureSelector::new("collective", "mean_us", BetterDirection::Lower)
        .with("collective", "all_reduce")
        .with("size", 8);
    let row = beside(
        "tcp all_reduce 8 B, 2 ranks",
        &pick,
        Contestant::MpichTcp,
        1.0,
    );
    let mut job = job("collective all_reduce --size 8", vec![row]);
    job.contestants.retain(|who| *who != Contestant::Sockets);
    CompareJob {
        peer_program: Some("collective"),
        peer_args: split_words("all_reduce --size 8"),
        ..job
    }
}

/// Both ranks sleep on one core until something comes. MPI libraries spin, and would measure time slices.
fn one_core() -> CompareJob {
    let pick = FigureSelector::new("latency", "median_us", BetterDirection::Lower).with("size", 8);
    let label = "tcp latency 8 B, both ranks on one core";
    let job = job(
        "latency --size 8",
        vec![beside(label, &pick, Contestant::Sockets, 1.4)],
    );
    CompareJob {
        peer_args: split_words("latency --size 8 --wait block --cores 0,0"),
        contestants: vec![Contestant::Sockets, Contestant::OursTcp],
        one_core: true,
        ..job
    }
}

fn job(args: &str, rows: Vec<CompareRow>) -> CompareJob {
    let mut contestants = COLUMNS.to_vec();
    contestants.push(Contestant::OursTcp);
    CompareJob {
        contestants,
        columns: COLUMNS,
        ..CompareJob::perf(GROUP, args, rows)
    }
}

/// Makes a job of rows without other contestants.
fn by_ours(args: &str, rows: Vec<CompareRow>) -> CompareJob {
    CompareJob {
        contestants: vec![Contestant::OursTcp],
        columns: COLUMNS,
        ..CompareJob::alone(GROUP, args, rows)
    }
}

/// Makes a row of Ripstop alone.
fn alone(label: &str, pick: &FigureSelector, limit: f64) -> CompareRow {
    CompareRow::new(label, pick, RatioTarget::alone(limit)).by(Contestant::OursTcp)
}

/// Makes a row of Ripstop beside one other contestant, by the same figure.
fn beside(label: &str, pick: &FigureSelector, other: Contestant, limit: f64) -> CompareRow {
    let target = RatioTarget::ratio(vec![(other, pick.clone())], limit);
    let label = format!("{label} / {}", other.name());
    CompareRow::new(label, pick, target).by(Contestant::OursTcp)
}

/// Makes a row of Ripstop beside the best of the MPI libraries.
fn beside_libraries(label: &str, pick: &FigureSelector, limit: f64) -> CompareRow {
    let others = LIBRARIES.map(|library| (library, pick.clone())).to_vec();
    let target = RatioTarget::ratio(others, limit);
    CompareRow::new(format!("{label} / best peer"), pick, target).by(Contestant::OursTcp)
}

#[cfg(test)]
mod tests {
    use super::{Contestant, jobs, jobs_between_hosts};

    #[test]
    fn every_contestant_that_a_row_needs_is_started() {
        for job in jobs().into_iter().chain(jobs_between_hosts()) {
            for row in &job.rows {
                let against = row.target.against.iter().map(|(who, _)| *who);
                for who in against.chain([row.contestant]) {
                    assert!(job.contestants.contains(&who), "{}", row.label);
                }
            }
        }
    }

    #[test]
    fn jobs_between_hosts_need_no_more_hosts_than_there_can_be() {
        let jobs = jobs_between_hosts();
        assert_eq!(jobs.iter().map(super::CompareJob::hosts).max(), Some(32));
        let shared = jobs.iter().find(|job| job.per_host == 2).unwrap();
        assert_eq!(super::super::between_hosts::hosts(shared), "h1:2,h2:2");
        let many = jobs.iter().find(|job| job.per_host == 32).unwrap();
        assert_eq!(super::super::between_hosts::hosts(many), "h1:32,h2:32");
    }

    #[test]
    fn a_missing_library_leaves_the_others_to_compare_with() {
        let mut jobs = jobs();
        let job = &mut jobs[2];
        job.leave_out(Contestant::OpenMpiUcx);
        let against = |job: &super::CompareJob| {
            let against = &job.rows[0].target.against;
            against.iter().map(|(who, _)| *who).collect::<Vec<_>>()
        };
        assert_eq!(against(job), [Contestant::MpichTcp, Contestant::OpenMpiTcp]);
        job.leave_out(Contestant::MpichTcp);
        job.leave_out(Contestant::OpenMpiTcp);
        // With nothing to compare with, the row would be a limit on the figure itself.
        assert_eq!(against(job), [Contestant::OpenMpiTcp]);
    }
}
