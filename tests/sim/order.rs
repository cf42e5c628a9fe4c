//! Order and completeness, with messages that are lost, duplicated, reordered or late.

use ripstop::{
    Collectives, Comm, Result, Source, Tag,
    fabric::random::SeededRandom,
    sim::{Simulation, Transport},
};

use crate::{check::assert_content, content::content};

/// Short, eager and offered messages.
fn length(key: u64) -> usize {
    let mut random = SeededRandom::new(key);
    let longest = [1, 100, 6_000, 60_000][random.within(0..4) as usize];
    random.within(0..longest) as usize
}

fn key(from: usize, to: usize, number: usize) -> u64 {
    ((from * 64 + to) * 4096 + number) as u64
}

/// Each rank sends to each. Receives take any message, so reordering would show.
async fn everybody_to_everybody(world: Comm) -> Result<()> {
    const EACH: usize = 20;
    let (me, size) = (world.rank(), world.size());
    let sends: Vec<_> = (0..EACH)
        .flat_map(|number| (0..size).map(move |to| (number, to)))
        .map(|(number, to)| {
            let key = key(me, to, number);
            world.send(to, number as u32 % 3, content(key, length(key)))
        })
        .collect();
    let mut next = vec![0; size];
    for _ in 0..EACH * size {
        let (bytes, status) = world.recv::<u8>(Source::Any, Tag::Any).await?;
        let number = next[status.source];
        next[status.source] += 1;
        assert_eq!(status.tag, number as u32 % 3, "from rank {}", status.source);
        let key = key(status.source, me, number);
        assert_content(&bytes, key, length(key));
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

#[ripstop::sim(ranks = 16, fabric = "bxi")]
async fn nothing_is_overtaken_on_a_whole_fabric(world: Comm) -> Result<()> {
    everybody_to_everybody(world).await
}

#[ripstop::sim(ranks = 8, fabric = "bxi", faults = "drop=0.3")]
async fn nothing_is_overtaken_when_a_third_is_lost(world: Comm) -> Result<()> {
    everybody_to_everybody(world).await
}

#[ripstop::sim(
    ranks = 8,
    fabric = "bxi",
    faults = "drop=0.3,dup=0.2,reorder=64,delay=0.1:20us"
)]
async fn nothing_is_overtaken_when_everything_goes_wrong(world: Comm) -> Result<()> {
    everybody_to_everybody(world).await
}

#[ripstop::sim(ranks = 8, fabric = "bxi", faults = "corrupt=0.1")]
async fn what_was_changed_on_its_way_is_sent_again(world: Comm) -> Result<()> {
    everybody_to_everybody(world).await
}

#[ripstop::sim(ranks = 8, fabric = "bxi", faults = "drop=0.3", datagrams)]
async fn the_runtime_repairs_losses_itself(world: Comm) -> Result<()> {
    everybody_to_everybody(world).await
}

#[ripstop::sim(
    ranks = 8,
    fabric = "bxi",
    faults = "drop=0.3,dup=0.2,reorder=64,delay=0.1:20us",
    datagrams
)]
async fn the_runtime_repairs_everything_itself(world: Comm) -> Result<()> {
    everybody_to_everybody(world).await
}

#[ripstop::sim(ranks = 27, fabric = "hdr", faults = "drop=0.1")]
async fn collectives_give_the_same_result_under_loss(world: Comm) -> Result<()> {
    for round in 0..5_u64 {
        world.barrier().await?;
        let [sum] = world
            .all_reduce([world.rank() as u64 + round], ripstop::Sum)
            .await?;
        assert_eq!(sum, 26 * 27 / 2 + 27 * round);
        let root = round as usize % world.size();
        let mine = if world.rank() == root {
            [round; 4]
        } else {
            [0; 4]
        };
        assert_eq!(world.bcast(root, mine).await?, [round; 4]);
    }
    Ok(())
}

#[test]
fn a_million_messages_under_loss_leak_no_operation() {
    // A debug build is about twenty times slower, and shows the same with fewer ranks.
    let windows = if cfg!(debug_assertions) { 50 } else { 1000 };
    for transport in [Transport::Reliable, Transport::Datagram] {
        let report = Simulation::new(10)
            .seed(11)
            .fabric("bxi")
            .faults("drop=0.3")
            .transport(transport)
            .run(|world| async move {
                let partner = world.rank() ^ 1;
                for window in 0..windows {
                    let inbox: Vec<_> = (0..100)
                        .map(|_| world.recv_into(partner, 1, [0_u64]))
                        .collect();
                    let sends: Vec<_> = (0..100)
                        .map(|n| world.send(partner, 1, [window * 100 + n]))
                        .collect();
                    for (n, message) in (0..).zip(inbox) {
                        let ([got], _) = message.await?;
                        assert_eq!(got, window * 100 + n);
                    }
                    for send in sends {
                        send.await?;
                    }
                }
                crate::well()
            })
            .unwrap();
        report
            .results
            .into_iter()
            .for_each(|result| result.unwrap().unwrap());
        assert_eq!(report.leaked, 0);
        let drops = 100 * windows * 10 / 5;
        assert!(report.stats.drops > drops, "{:?}", report.stats);
    }
}
