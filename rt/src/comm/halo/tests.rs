//! What exchanges that were never finished leave behind.

use super::*;
use crate::sim::Simulation;

#[test]
fn messages_are_received_in_the_order_in_which_neighbors_send_them() {
    let report = Simulation::new(8).run(|world: Comm| async move {
        let cart = world.cart(&[2, 2, 2], &[true, false, true]).await?;
        for corners in [false, true] {
            let sides = sides::sides(&cart, &[6, 6, 6], 1, corners);
            let sent: Vec<_> = sides.iter().map(|side| side.send_tag).collect();
            let received: Vec<_> = sides.iter().rev().map(|side| side.recv_tag).collect();
            assert!(
                sent.is_sorted() && received.is_sorted(),
                "{sent:?}, {received:?}"
            );
            assert!(sides.len() > 4);
        }
        Ok::<_, Error>(())
    });
    let results = report.expect("the simulation ends").results;
    for result in results {
        result.expect("no panic").expect("no error");
    }
}

#[test]
fn exchanges_that_are_never_finished_leave_no_more_than_what_is_in_flight() {
    let report = Simulation::new(2).run(|world: Comm| async move {
        let (me, other) = (world.rank(), 1 - world.rank());
        let cart = world.cart(&[2], &[true]).await?;
        let mut halo = Halo::new(&cart, &[3], 1).await?;
        for step in 0..1000 {
            drop(halo.start(&[0, 10 * step + me, 0]));
            // The messages of the exchange come before this one.
            world.sendrecv(other, other, 7, [0_u8]).await?;
            for lane in &halo.lanes {
                assert!(
                    lane.receiving.len() <= 2,
                    "{step}: {}",
                    lane.receiving.len()
                );
            }
        }
        let mut field = [0, 77_000 + me, 0];
        halo.start(&field).finish(&mut field).await?;
        assert_eq!(field, [77_000 + other, 77_000 + me, 77_000 + other]);
        Ok::<_, Error>(())
    });
    let results = report.expect("the simulation ends").results;
    for result in results {
        result.expect("no panic").expect("no error");
    }
}
