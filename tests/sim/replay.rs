//! The same seed gives the same run, and virtual time is meaningful.

use std::time::Duration;

use ripstop::{
    Collectives as _, Result, Source, Tag,
    sim::{Model, Report, Simulation, compute, now},
};

fn chatter(seed: u64) -> Report<Result<Vec<usize>>> {
    Simulation::new(12)
        .seed(seed)
        .fabric("bxi")
        .faults("drop=0.2,dup=0.1,reorder=16")
        .run(|world| async move {
            let (me, size) = (world.rank(), world.size());
            let sends: Vec<_> = (0..size)
                .map(|to| world.send(to, 1, vec![me; 10 * to]))
                .collect();
            let mut order = Vec::new();
            for _ in 0..size {
                order.push(world.recv::<usize>(Source::Any, Tag::Any).await?.1.source);
            }
            for send in sends {
                send.await?;
            }
            Ok(order)
        })
        .unwrap()
}

#[test]
fn a_seed_is_a_run() {
    let orders = |report: Report<Result<Vec<usize>>>| {
        let orders: Vec<_> = report
            .results
            .into_iter()
            .map(|order| order.unwrap().unwrap())
            .collect();
        (orders, report.digest, report.time)
    };
    let (first, again, other) = (orders(chatter(1)), orders(chatter(1)), orders(chatter(2)));
    assert_eq!(first, again);
    assert_ne!(first.1, other.1);
}

#[test]
fn a_computation_takes_its_time_and_messages_travel_meanwhile() {
    let model = Model::from_toml("base = \"bxi\"\n[host]\nagent = true\n").unwrap();
    let report = Simulation::new(2)
        .model(model)
        .run(|world| async move {
            let peer = 1 - world.rank();
            let inbox = world.recv_into(peer, 1, vec![0_u8; 1 << 20]);
            let sent = world.send(peer, 1, vec![1_u8; 1 << 20]);
            let start = now(&world);
            compute(&world, Duration::from_millis(10)).await;
            let computed = now(&world) - start;
            assert!(
                computed >= Duration::from_millis(10) && computed < Duration::from_millis(11),
                "{computed:?}"
            );
            assert!(
                sent.is_done() && inbox.is_done(),
                "an agent moves what a computation does not wait for"
            );
            inbox.await?;
            sent.await?;
            crate::well()
        })
        .unwrap();
    report
        .results
        .into_iter()
        .for_each(|result| result.unwrap().unwrap());
}

#[test]
fn a_task_goes_on_while_its_rank_waits_but_not_while_it_computes() {
    let report = Simulation::new(2)
        .fabric("bxi")
        .run(|world| async move {
            let other = world.clone();
            let task = world.spawn(async move {
                let mut ticks = 0;
                while now(&other) < Duration::from_millis(10) {
                    other.sleep(Duration::from_millis(1)).await;
                    ticks += 1;
                }
                ticks
            });
            compute(&world, Duration::from_millis(5)).await;
            let ticks = task.await;
            assert!((5..=7).contains(&ticks), "{ticks} ticks");
        })
        .unwrap();
    assert!(report.time >= Duration::from_millis(10));
}

/// Sends one message of more than 4 GiB. Returns the digest, and the virtual time.
fn long_message(last: u8) -> (u64, Duration) {
    const LEN: usize = (4 << 30) + 1;
    let report = Simulation::new(2)
        .fabric("bxi")
        .hash_from(1 << 20)
        .run(move |world| async move {
            let mut buf = world.alloc::<u8>(LEN)?;
            if world.rank() == 0 {
                buf[LEN - 1] = last;
                world.send(1, 1, buf).await?;
            } else {
                let (_, status) = world.recv_into(0, 1, buf).await?;
                assert_eq!(status.len, LEN);
            }
            crate::well()
        })
        .unwrap();
    report
        .results
        .into_iter()
        .for_each(|result| result.unwrap().unwrap());
    (report.digest, report.time)
}

#[test]
fn a_message_of_four_gibibytes_needs_no_four_gibibytes() {
    let (digest, time) = long_message(1);
    assert_ne!(digest, long_message(2).0, "the last byte is hashed too");
    let seconds = 12.5e9_f64.recip() * (4_u64 << 30) as f64;
    let ratio = time.as_secs_f64() / seconds;
    assert!(
        (1.0..1.01).contains(&ratio),
        "{time:?} for {seconds} s of link"
    );
    let peak = peak_resident();
    assert!(peak < 512 << 20, "{peak} bytes were in memory at a time");
}

/// Returns the peak resident memory of this process, in bytes.
fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap() * 1024
}

/// Memory that the runtime did not allocate may be uninitialized before a message comes, so it is filled first.
#[test]
fn memory_of_the_program_is_filled_where_registered_buffers_have_lengths_only() {
    for collectives in ["lists", "messages"] {
        Simulation::new(2)
            .fabric("bxi")
            .lengths_from(1)
            .set("RIPSTOP_COLLECTIVES", collectives)
            .run(|world| async move {
                let (me, other) = (world.rank(), 1 - world.rank());
                let got = world.all_to_all(vec![me as u64; 2 << 16]).await?;
                assert!(got[..1 << 16].iter().all(|one| *one == 0));
                assert!(got[1 << 16..].iter().all(|one| *one == 1));
                let sent = world.send(other, 1, vec![me as u64; 1 << 16]);
                let (got, _) = world.recv::<u64>(other, 1).await?;
                sent.await?;
                assert!(got == vec![other as u64; 1 << 16]);
                crate::well()
            })
            .unwrap()
            .results
            .into_iter()
            .for_each(|result| result.unwrap().unwrap());
    }
}
