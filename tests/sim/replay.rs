//! The same seed gives the same run; time means something.

use std::time::Duration;

use ripstop::{
    Result, Source, Tag,
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
