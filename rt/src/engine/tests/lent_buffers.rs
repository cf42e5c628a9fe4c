//! The end of a rank while buffers of its receives are lent to the driver.

use ripstop_fabric::driver::Driver;

use super::world::{CTX, DETECT};
use crate::{
    clock::ClockTime,
    engine::{
        Engine, EngineSetup,
        commons::lone_rank::lone_setup,
        point_to_point::tests::scripted_driver::{
            ScriptedDriver, ScriptedReport, exact, lock, token,
        },
    },
    error::ErrorKind,
    group::RankGroup,
    ops::OpTicket,
};

fn engine(driver: Box<dyn Driver>) -> Engine {
    let setup = EngineSetup {
        detect: DETECT,
        ..lone_setup(&*driver, 0, 2)
    };
    let mut engine = Engine::new(driver, setup);
    engine.core.join_group(CTX, &RankGroup::First(2));
    engine
}

/// Posts a receive whose buffer is lent.
fn lend(engine: &mut Engine, tag: u32) -> OpTicket<Vec<u8>> {
    let ops = &mut engine.core.p2p.common.ops;
    let recv = ops.hold_recv(exact(tag), vec![0; 20]);
    engine.post(recv.op);
    recv
}

fn end(engine: &mut Engine, recv: &OpTicket<Vec<u8>>) -> (ErrorKind, Vec<u8>) {
    let taken = engine.core.p2p.common.take_recv(recv);
    let (outcome, buf) = taken.expect("it is done");
    (outcome.expect_err("closed").kind, buf)
}

#[test]
fn close_waits_for_buffers_that_are_lent() {
    let (driver, script) = ScriptedDriver::new();
    let mut engine = engine(Box::new(driver));
    let recv = lend(&mut engine, 1);
    engine.begin_close();
    assert!(!engine.is_closed());
    let back = ScriptedReport::Returned(token(&recv));
    lock(&script).next.push_back(back);
    engine.turn(ClockTime::default());
    assert!(matches!(end(&mut engine, &recv).0, ErrorKind::Closed));
    assert!(engine.is_closed());
}

#[test]
fn an_abrupt_end_gives_buffers_back_after_the_driver() {
    let (driver, script) = ScriptedDriver::new();
    let mut engine = engine(Box::new(driver));
    let [waits, over] = [1, 2].map(|tag| lend(&mut engine, tag));
    engine.core.p2p.unpost(over.op, ErrorKind::Cancelled);
    engine.release_driver();
    assert!(lock(&script).closed);
    for recv in [waits, over] {
        let (why, buf) = end(&mut engine, &recv);
        assert!(matches!(why, ErrorKind::Closed));
        assert_eq!(buf, [0xdd; 20], "the driver wrote before it was gone");
    }
}
