//! One failing call of every operation: its error names the line that made it, in this file.

use std::{mem, time::Duration};

use ripstop::{
    Cart, Collectives, Comm, Error, Graph, Halo, Neighborhood, NodeWindow, ReproducibleSum,
    Runtime, Sum, Window,
    buffer::{Layout, RegBuf},
    rma::Fence,
};

/// The most lines of a call in this file.
const LINES: u32 = 12;

fn check<T, E: Into<Error>>(result: Result<T, E>, call: &str, line: u32) {
    let error: Error = match result {
        Ok(_) => panic!("line {line}: {call} did not fail"),
        Err(error) => error.into(),
    };
    let at = error.at;
    let at = at.unwrap_or_else(|| panic!("line {line}: {call}: no line in: {error}"));
    let here = at.file() == file!() && (line..line + LINES).contains(&at.line());
    assert!(here, "line {line}: {call}: {error}");
    let text = error.to_string();
    assert!(text.contains(&format!(", at {at}: ")), "{text}");
}

/// Checks that a call returns an error, and returns it.
macro_rules! fails {
    ($($call:expr;)+) => {$(check($call, stringify!($call), line!());)+};
}

/// Runs a rank that is alone.
fn alone<F: Future>(work: impl FnOnce(Comm) -> F) {
    let runtime = Runtime::builder().init().expect("one rank");
    runtime.block_on(work(runtime.world()));
    runtime.close().expect("a good end");
}

const LAYOUT: Layout = Layout {
    offset: 0,
    block: 1,
    count: 1,
    stride: 1,
};

fn one_value() -> Vec<f64> {
    vec![0.0]
}

/// Checks calls on a communicator that return no future.
async fn revoked(world: &Comm) -> Comm {
    let comm = world.dup().await.expect("this rank lives");
    comm.revoke();
    comm
}

#[test]
fn messages_name_their_lines() {
    alone(|world| async move {
        fails! { world.alloc::<u8>(0); }
        fails! { world.send(9, 1, [0_u8]).await; }
        fails! { world.send_synchronous(9, 1, [0_u8]).await; }
        fails! { world.send_copy(9, 1, &[0_u8]).await; }
        fails! { world.sendrecv(9, 0, 1, [0_u8]).await; }
        fails! { world.sendrecv_into(None, 9, 1, [0_u8], 0).await; }
        fails! { world.send_packed(9, 1, &[0_u8], LAYOUT).await; }
        fails! { world.recv_packed::<u8>(9, 1, LAYOUT).await; }
        fails! { world.recv_packed_in(9, 1, LAYOUT, vec![0_u8]).await; }
        fails! { world.create(&[9]).await; }
        fails! { world.split(u128::MAX, 0).await; }
        fails! { world.split_some(Some(0), u128::MAX).await; }
        fails! { world.try_send_copy(9, 1, &[0_u8]); }
        fails! { world.recv::<u8>(9, 1).await; }
        fails! { world.recv_into(9, 1, [0_u8]).await; }
        fails! { world.probe(9, 1).await; }
        fails! { world.try_probe(9, 1); }
        fails! { world.messages::<u8>(9, 1).recv().await; }
        fails! { world.channel::<u8>(9, 1); }
        let soon = Duration::from_millis(1);
        fails! { world.recv::<u8>(0, 1).timeout(soon).await; }
        fails! { world.send_synchronous(0, 2, [0_u8]).timeout(soon).await; }
        world.send(0, 3, [1_u8]).await.expect("this rank lives");
        let matched = world.probe(0, 3).await.expect("it has come");
        fails! { matched.recv::<u64>().await; }
        let matched = world.probe(0, 3).await.expect("it is there again");
        fails! { matched.recv_into([0_u64; 3]).await; }
        let comm = world.dup().await.expect("this rank lives");
        let channel = comm.channel::<u8>(0, 1).expect("there is a rank 0");
        let mut messages = comm.messages::<u8>(0, 1);
        comm.revoke();
        fails! { channel.send([0_u8]).await; }
        fails! { channel.recv_into([0_u8]).await; }
        // A stream's receive was posted on the line that made it.
        let error = messages.recv().await.expect_err("revoked");
        assert_eq!(error.at.map(std::panic::Location::file), Some(file!()));
        fails! { comm.try_probe(0, 1); }
        fails! { comm.try_send_copy(0, 1, &[0_u8]); }
    });
}

#[test]
fn borrowed_messages_name_their_lines() {
    let runtime = Runtime::builder().init().expect("one rank");
    let world = runtime.world();
    let mut byte = [0_u8];
    fails! { runtime.scope(|s| s.send(&world, 9, 1, &[0_u8]).wait()); }
    fails! { runtime.scope(|s| s.recv(&world, 9, 1, &mut byte).wait()); }
    fails! { runtime.alloc::<u8>(0); }
    runtime.close().expect("a good end");
}

#[test]
fn makers_of_communicators_name_their_lines() {
    alone(|world| async move {
        fails! { world.cart(&[2], &[true]).await; }
        let comm = revoked(&world).await;
        fails! { comm.dup().await; }
        fails! { comm.split_some(Some(1), 0).await; }
        fails! { comm.split_node().await; }
        fails! { comm.cart(&[1], &[true]).await; }
        fails! { comm.graph(&[0], &[0]).await; }
        fails! { Graph::new(&comm, &[0], &[0]).await; }
        let one = grid(&world).await;
        fails! { one.sub(&[]).await; }
        fails! { Halo::<u8>::new(&one, &[1], 1).await; }
        fails! { world.graph(&[0], &[]).await; }
        fails! { world.graph(&[9], &[9]).await; }
    });
}

#[test]
fn collectives_name_their_lines() {
    alone(|world| async move {
        let comm = revoked(&world).await;
        fails! { comm.barrier().await; }
        fails! { comm.bcast(0, one_value()).await; }
        fails! { comm.gather(0, one_value()).await; }
        fails! { comm.gather_into(0, one_value(), one_value()).await; }
        fails! { comm.gather_v(0, one_value(), &[1]).await; }
        fails! { comm.gather_v_into(0, one_value(), one_value(), &[1]).await; }
        fails! { comm.scatter(0, one_value(), 1).await; }
        fails! { comm.scatter_into(0, one_value(), one_value(), 1).await; }
        fails! { comm.scatter_v(0, one_value(), &[1]).await; }
        fails! { comm.scatter_v_into(0, one_value(), one_value(), &[1]).await; }
        fails! { comm.all_gather(one_value()).await; }
        fails! { comm.all_gather_into(one_value(), one_value()).await; }
        fails! { comm.all_gather_v(one_value(), &[1]).await; }
        fails! { comm.all_gather_v_into(one_value(), one_value(), &[1]).await; }
        fails! { comm.all_to_all(one_value()).await; }
        fails! { comm.all_to_all(one_value()).blocks().next().await.expect("an error"); }
        fails! { comm.all_to_all_into(one_value(), one_value()).await; }
        fails! { comm.all_to_all_v(one_value(), &[1], &[1]).await; }
        fails! { comm.all_to_all_v_into(one_value(), &[1], one_value(), &[1]).await; }
        fails! { comm.tuned(Default::default()).barrier().await; }
        fails! { comm.all_to_all_ragged(vec![one_value()]).await; }
        fails! { comm.all_gather_ragged(one_value()).await; }
        fails! { comm.gather_ragged(0, one_value()).await; }
        fails! { comm.bcast_ragged(0, one_value()).await; }
        fails! { comm.gather_v_rooted(0, one_value(), &[1]).await; }
        fails! { comm.scatter_v_rooted(0, one_value(), &[1]).await; }
        fails! { comm.scatter_ragged(0, vec![one_value()]).await; }
        fails! {
            world.bcast(9, one_value()).await;
        }
    });
}

#[test]
fn reductions_name_their_lines() {
    alone(|world| async move {
        let comm = revoked(&world).await;
        fails! { comm.all_reduce(one_value(), Sum).await; }
        fails! { comm.all_reduce(one_value(), ReproducibleSum).await; }
        fails! { comm.reduce(0, one_value(), Sum).await; }
        fails! { comm.reduce(0, one_value(), ReproducibleSum).await; }
        fails! { comm.reduce_into(0, one_value(), one_value(), Sum).await; }
        fails! { comm.reduce_into(0, one_value(), one_value(), ReproducibleSum).await; }
        fails! { comm.reduce_scatter(one_value(), &[1], Sum).await; }
        fails! { comm.reduce_scatter_into(one_value(), one_value(), &[1], Sum).await; }
        fails! { comm.reduce_scatter_block(one_value(), Sum).await; }
        fails! { comm.reduce_scatter_block_into(one_value(), one_value(), Sum).await; }
        fails! { comm.scan(one_value(), Sum).await; }
        fails! { comm.exscan(one_value(), Sum).await; }
        fails! { comm.exscan_into(one_value(), one_value(), Sum).await; }
        fails! { comm.exscan_into(one_value(), one_value(), ReproducibleSum).await; }
    });
}

#[test]
fn plans_name_the_lines_that_make_and_run_them() {
    alone(|world| async move {
        let comm = world.dup().await.expect("this rank lives");
        let mut plan = comm.all_reduce_plan::<f64, _>(1, Sum).await.expect("alone");
        let mut wide = comm
            .all_reduce_plan::<f64, _>(1, ReproducibleSum)
            .await
            .expect("alone");
        comm.revoke();
        fails! { plan.run().await; }
        fails! { wide.run().await; }
        fails! { comm.barrier_plan().await; }
        fails! { comm.bcast_plan::<u8>(0, 1).await; }
        fails! { comm.gather_plan::<u8>(0, 1).await; }
        fails! { comm.gather_v_plan::<u8>(0, &[1]).await; }
        fails! { comm.scatter_plan::<u8>(0, 1).await; }
        fails! { comm.scatter_v_plan::<u8>(0, &[1]).await; }
        fails! { comm.all_gather_plan::<u8>(1).await; }
        fails! { comm.all_gather_v_plan::<u8>(&[1]).await; }
        fails! { comm.all_to_all_plan::<u8>(1).await; }
        fails! { comm.all_to_all_v_plan::<u8>(&[1], &[1]).await; }
        fails! { comm.all_reduce_plan::<u8, _>(1, Sum).await; }
        fails! { comm.reduce_plan::<u8, _>(0, 1, Sum).await; }
        fails! { comm.reduce_scatter_plan::<u8, _>(&[1], Sum).await; }
        fails! { comm.reduce_scatter_block_plan::<u8, _>(1, Sum).await; }
        fails! { comm.scan_plan::<u8, _>(1, Sum).await; }
        fails! { comm.exscan_plan::<u8, _>(1, Sum).await; }
        fails! { world.bcast_plan::<u8>(9, 1).await; }
    });
}

/// Returns a grid of one rank that is its own neighbor.
async fn grid(world: &Comm) -> Cart {
    let grid = world.cart(&[1], &[true]).await;
    grid.expect("this rank lives")
}

#[test]
fn neighborhoods_name_their_lines() {
    alone(|world| async move {
        let grid = grid(&world).await;
        let two = || vec![0.0_f64; 2];
        let mut plan = grid.neighbor_all_to_all_plan::<u8>(1).await.expect("alone");
        grid.revoke();
        fails! { plan.run().await; }
        fails! { Halo::<u8>::new(&grid, &[3], 1).await; }
        fails! { Halo::<u8>::with_corners(&grid, &[3], 1).await; }
        fails! { grid.neighbor_all_gather(one_value()).await; }
        fails! { grid.neighbor_all_gather_into(one_value(), two()).await; }
        fails! { grid.neighbor_all_gather_v(one_value(), &[1, 1]).await; }
        fails! { grid.neighbor_all_gather_v_into(one_value(), two(), &[1, 1]).await; }
        fails! { grid.neighbor_all_to_all(two()).await; }
        fails! { grid.neighbor_all_to_all_into(two(), two()).await; }
        fails! { grid.neighbor_all_to_all_v(two(), &[1, 1], &[1, 1]).await; }
        fails! { grid.neighbor_all_to_all_ragged(vec![one_value(), one_value()]).await; }
        fails! { grid.neighbor_all_to_all_v_into(two(), &[1, 1], two(), &[1, 1]).await; }
        fails! { grid.neighbor_all_gather_plan::<u8>(1).await; }
        fails! { grid.neighbor_all_gather_v_plan::<u8>(1, &[1, 1]).await; }
        fails! { grid.neighbor_all_to_all_plan::<u8>(1).await; }
        fails! { grid.neighbor_all_to_all_v_plan::<u8>(&[1, 1], &[1, 1]).await; }
    });
}

/// Returns a window of two elements.
async fn window(comm: &Comm) -> Window<u64> {
    let window = Window::allocate(comm, 2).await;
    window.expect("there is memory")
}

/// Returns a window that stays open to this rank.
async fn exposed(comm: &Comm) -> Window<u64> {
    let mut window = window(comm).await;
    let _stays_open = window.post(&[0]).expect("there is a rank 0");
    window
}

#[test]
fn windows_name_their_lines() {
    alone(|world| async move {
        let mut here = window(&world).await;
        let soon = Duration::from_millis(1);
        fails! { here.meet(&[9]).await; }
        fails! { here.meet(&[0, 0]).await; }
        fails! { here.attach(world.alloc(1).expect("memory")); }
        fails! { here.post(&[9]); }
        fails! { here.start(&[9]).await; }
        fails! { here.start(&[0]).timeout(soon).await; }
        let exposure = here.post(&[0]).expect("there is a rank 0");
        fails! { exposure.start(&[9]).await; }
        fails! { exposure.wait().timeout(soon).await; }
        fails! { here.try_local_mut(); }
        fails! { here.post(&[0]); }
        fails! { here.fence().await; }
        fails! { here.free().await; }
        fails! { exposed(&world).await.into_buffer().await; }
        fails! { exposed(&world).await.into_vec().await; }
        fails! { exposed(&world).await.into_passive().await; }
        let mut grows = Window::<u8>::dynamic(&world).await.expect("alone");
        let piece = grows.attach(world.alloc(1).expect("memory")).expect("room");
        grows.detach(piece).expect("it was attached");
        fails! { grows.detach(piece); }
        fails! { grows.piece_mut(piece); }
    });
}

/// Makes every operation on a rank that the epoch does not access, and on elements that do not exist.
macro_rules! operations_fail {
    ($epoch:expr) => {
        for (rank, at) in [(9, 0), (0, 7)] {
            fails! { $epoch.put(rank, at, [1_u64]).await; }
            fails! { $epoch.get(rank, at, [1_u64]).await; }
            fails! { $epoch.put_strided(rank, Layout { offset: at, ..LAYOUT }, [1_u64]).await; }
            fails! { $epoch.get_strided(rank, Layout { offset: at, ..LAYOUT }, [1_u64]).await; }
            fails! { $epoch.put_indexed(rank, &[at..at + 1], [1_u64]).await; }
            fails! { $epoch.get_indexed(rank, &[at..at + 1], [1_u64]).await; }
            fails! { $epoch.accumulate(rank, at, [1_u64], Sum).await; }
            fails! { $epoch.get_accumulate(rank, at, [1_u64], Sum).await; }
            fails! { $epoch.accumulate_strided(rank, Layout { offset: at, ..LAYOUT }, [1_u64], Sum).await; }
            fails! { $epoch.get_accumulate_strided(rank, Layout { offset: at, ..LAYOUT }, [1_u64], Sum).await; }
            fails! { $epoch.fetch_add(rank, at, 1).await; }
            fails! { $epoch.fetch_op(rank, at, 1, Sum).await; }
            fails! { $epoch.compare_exchange(rank, at, 1, 2).await; }
        }
    };
}

#[test]
fn operations_on_windows_name_their_lines() {
    alone(|world| async move {
        let mut here = window(&world).await;
        let _ = here.post(&[0]).expect("there is a rank 0"); // it stays open
        let access = here.start(&[0]).await.expect("it is posted");
        operations_fail!(access);
        access.complete().await.expect("this rank lives");
        let mut here = window(&world).await;
        let fence: Fence<'_, u64> = here.fence().await.expect("alone");
        operations_fail!(fence);
        fence.end().await.expect("alone");
    });
}

#[test]
fn locks_name_their_lines() {
    alone(|world| async move {
        let comm = world.dup().await.expect("this rank lives");
        let passive = |window: Window<u64>| async { window.into_passive().await.expect("alone") };
        let mut here = passive(window(&comm).await).await;
        fails! { here.lock_exclusive(9).await; }
        for (error, op) in [
            (here.lock_shared(9).await.err(), "lock_shared"),
            (here.lock_exclusive(9).await.err(), "lock_exclusive"),
        ] {
            assert_eq!(error.expect("there is no rank 9").op, op);
        }
        let one = here.lock_shared(0).await.expect("it is free");
        fails! { here.lock_all().await; }
        fails! { one.flush(9).await; }
        fails! { one.flush_local(9).await; }
        operations_fail!(one);
        one.unlock().await;
        let all = here.lock_all().await.expect("it is free");
        fails! { here.lock_exclusive(0).await; }
        fails! { all.flush(9).await; }
        operations_fail!(all);
        all.unlock().await;
        mem::forget(here.lock_all().await.expect("it is free"));
        fails! { here.lock_self().await; }
    });
}

#[ripstop::test(ranks = 2)]
async fn what_all_ranks_do_with_windows_names_its_lines(world: Comm) {
    let comm = world.dup().await.expect("both live");
    let [one, other] = [window(&comm).await, window(&comm).await];
    let (one, other) = (
        one.into_passive().await.expect("both live"),
        other.into_passive().await.expect("both live"),
    );
    comm.revoke();
    fails! { one.free().await; }
    fails! { other.into_buffer().await; }
    fails! { Window::<u8>::allocate(&comm, 1).await; }
    fails! { NodeWindow::<u8>::allocate(&comm, 1).await; }
    let buf: RegBuf<u8> = world.alloc(1).expect("memory");
    fails! { Window::over(&comm, buf).await; }
    fails! { Window::from_vec(&comm, vec![1_u8]).await; }
    fails! { Window::<u8>::dynamic(&comm).await; }
}

/// Calls that fail only with two ranks.
#[ripstop::test(ranks = 2)]
async fn fences_of_two_kinds_name_their_lines(world: Comm) {
    let (mut first, mut second) = (window(&world).await, window(&world).await);
    let (one, other) = (
        first.fence().await.expect("both live"),
        second.fence().await.expect("both live"),
    );
    if world.rank() == 0 {
        fails! { one.fence().await; }
        fails! { other.end().await; }
    } else {
        fails! { one.end().await; }
        fails! { other.fence().await; }
    }
}

#[ripstop::test(ranks = 2)]
async fn collectives_that_disagree_name_their_lines(world: Comm) {
    let comm = world.dup().await.expect("both live");
    if world.rank() == 0 {
        fails! { comm.barrier().await; }
    } else {
        fails! { comm.all_reduce([1_u8], Sum).await; }
    }
    fails! { comm.barrier().await; }
    let comm = world.dup().await.expect("both live");
    if world.rank() == 0 {
        fails! { comm.dup().await; }
    } else {
        fails! { comm.split_some(None::<u32>, 0).await; }
    }
}

/// Errors of communicators name the communicator.
#[test]
fn a_communicator_is_called_by_its_name_or_the_line_that_made_it() {
    alone(|world| async move {
        let of = async |comm: &Comm| comm.send(9, 1, [0_u8]).await.expect_err("no rank 9").error;
        let plain = of(&world).await;
        assert!(!plain.to_string().contains("communicator"), "{plain}");
        assert_eq!((plain.comm, plain.made()), (Some(0), None));
        let rows = world.split(0, 0).await.expect("alone");
        let line = line!() - 1;
        let made = of(&rows).await;
        let words = format!("communicator {} (made at {}:{line}:", rows.id(), file!());
        assert!(made.to_string().contains(&words), "{made}");
        let rows = rows.named("rows");
        let named = of(&rows.clone()).await;
        assert_eq!(named.name(), Some("rows"));
        assert!(
            named
                .to_string()
                .starts_with("send, communicator \"rows\", at tests/"),
            "{named}"
        );
        assert_eq!(format!("{rows:?}"), "Comm \"rows\" (rank 0 of 1)");
        let grid = grid(&world).await.named("grid");
        assert_eq!(of(&grid).await.name(), Some("grid"));
        let graph = world.graph(&[0], &[0]).await.expect("alone").named("graph");
        assert_eq!(of(&graph).await.name(), Some("graph"));
        let shrunk = world.shrink().await.expect("alone");
        assert_eq!(
            of(&shrunk).await.made().map(std::panic::Location::file),
            Some(file!())
        );
        assert_eq!(world.named("all").name().as_deref(), Some("all"));
    });
}
