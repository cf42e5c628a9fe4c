//! Roles of `tests/failures` with windows: what ranks do until one of them is killed, and what the others observe then.

use ripstop::{Collectives, Comm, ErrorKind, NodeWindow, Result, Source, Window};

use crate::{afterwards, failed, ready};

/// Elements of a rank in every other rank's memory.
const BLOCK: usize = 3000;

/// Epochs, or locks, after all ranks know of the death.
const MORE: usize = 20;

/// All ranks put to all others in every epoch. Survivors leave the dead rank out, and go on. Their puts to each other are
/// whole.
pub(crate) async fn epochs(world: &Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let mut window = Window::<u64>::allocate(world, size * BLOCK).await?;
    let mut peers: Vec<usize> = (0..size).filter(|&rank| rank != me).collect();
    world.barrier().await?;
    ready();
    let mut victim = None;
    let mut more = MORE;
    for n in 0.. {
        let knew = victim.is_some();
        let exposure = window.post(&peers)?;
        let access = loop {
            match exposure.start(&peers).await {
                Ok(access) => break access,
                Err(error) => lose(&mut victim, &mut peers, failed(&error.kind)),
            }
        };
        for &to in &peers {
            let block = block(me, n, knew);
            access.put(to, me * BLOCK, block).detach();
        }
        if let Err(error) = access.complete().await {
            lose(&mut victim, &mut peers, failed(&error.kind));
        }
        if let Err(error) = exposure.wait().await {
            lose(&mut victim, &mut peers, failed(&error.kind));
        }
        let mine = window.local_mut();
        let mut all_know = knew;
        for &from in &peers {
            let got = &mine[from * BLOCK..][..BLOCK];
            // A victim that is still alive for this rank may have been dead when this epoch began for others.
            let knows = got[0] == 1;
            assert!(got == block(from, n, knows), "epoch {n} of rank {from}");
            all_know &= knows;
        }
        mine.fill(0);
        if all_know {
            more -= 1;
        }
        if more == 0 {
            break;
        }
    }
    afterwards(world, victim.expect("every rank knows")).await
}

fn lose(victim: &mut Option<usize>, peers: &mut Vec<usize>, lost: usize) {
    *victim = Some(lost);
    peers.retain(|&peer| peer != lost);
}

/// The data that a rank puts in an epoch; the first element tells whether it knows of the death.
fn block(from: usize, n: u64, knows: bool) -> Vec<u64> {
    let mut block = vec![n << 8 | from as u64; BLOCK];
    block[0] = knows.into();
    block
}

/// All ranks put to all others between fences. The fences fail on all survivors, for good; each put fails for itself. The dead
/// rank may have come to the fence after the put, which then completes, but not to the next one.
pub(crate) async fn fences(world: &Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let mut window = Window::<u64>::allocate(world, size).await?;
    world.barrier().await?;
    ready();
    let until_one_dies = async {
        let mut epoch = window.fence().await?;
        loop {
            for to in 0..size {
                epoch.put(to, me, [1]).await?;
            }
            epoch = epoch.fence().await?;
        }
    };
    let error: ripstop::Error = match until_one_dies.await {
        Ok(never) => never,
        Err(error) => error,
    };
    let is_put = error.op == "put";
    // The kernel may take the memory of a dead rank from an adapter before it ends the rank's connections.
    let is_gone = matches!(
        error.kind,
        ErrorKind::NoWindow { .. } | ErrorKind::Transport(_)
    );
    assert!(is_of_a_death(&error) || is_put && is_gone, "{error}");
    if is_put && window.fence().await.is_ok() {
        let error = window.fence().await.expect_err("the dead came no further");
        assert!(is_of_a_death(&error), "{error}");
    }
    for _ in 0..2 {
        let again = window.fence().await.expect_err("fences fail for good");
        assert!(is_of_a_death(&again), "{again}");
    }
    Ok(())
}

/// The ranks of each node read what each has written, until one of them dies. Its neighbors do not get their memory back.
pub(crate) async fn node_windows(world: &Comm) -> Result<()> {
    let node = world.split_node().await?;
    let made = NodeWindow::<u64>::allocate(&node, BLOCK).await;
    if let Err(ErrorKind::NotShared { .. }) = made.as_ref().map_err(|error| &error.kind) {
        return fences(world).await; // a network alone maps no memory
    }
    let mut window = made?;
    let never = world.recv_into(Source::Any, 2, [0_u8]);
    world.barrier().await?;
    ready();
    let mut round = 0;
    while !never.is_done() {
        round += 1;
        if let Err(error) = take_turns(&mut window, round).await {
            assert!(is_of_a_death(&error), "{error}");
            assert!(window.local_mut().is_err(), "the dead may have read it");
            break;
        }
    }
    drop(window); // ends the turn in which a neighbor may wait that knows of the death later
    let victim = failed(&never.await.expect_err("never sent").error.kind);
    afterwards(world, victim).await
}

async fn take_turns(window: &mut NodeWindow<u64>, round: u64) -> Result<()> {
    window.local_mut()?.fill(round);
    let view = window.share().await?;
    for part in view.parts() {
        assert!(part.iter().all(|&elem| elem == round), "round {round}");
    }
    view.end().await.map(drop)
}

/// If deaths are not detected at once, a survivor that knows may have left before another one knows. It has finished then, and
/// its window is freed.
fn is_of_a_death(error: &ripstop::Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::PeerFailed { .. } | ErrorKind::PeerFinished { .. } | ErrorKind::Aborted { .. }
    )
}

/// All ranks want the lock of rank 0. If one dies, perhaps with the lock, the others still get it, and hold it alone.
pub(crate) async fn locks(world: &Comm) -> Result<()> {
    let mark = world.rank() as u64 + 1;
    let window = Window::<u64>::allocate(world, 1).await?;
    let window = window.into_passive().await?;
    let never = world.recv_into(Source::Any, 2, [0_u8]);
    world.barrier().await?;
    ready();
    let mut more = MORE;
    while more > 0 {
        if never.is_done() {
            more -= 1;
        }
        let lock = match window.lock_exclusive(0).await {
            Ok(lock) => lock,
            Err(error) => {
                assert_eq!(failed(&error.kind), 0);
                return afterwards(world, 0).await;
            }
        };
        lock.put(0, 0, [mark]).detach();
        for _ in 0..20 {
            match lock.get(0, 0, [0]).await {
                Ok([inside]) => assert_eq!(inside, mark, "two ranks are alone inside"),
                Err(gone) => assert_eq!(failed(&gone.error.kind), 0),
            }
        }
        lock.unlock().await;
    }
    let victim = failed(&never.await.expect_err("never sent").error.kind);
    afterwards(world, victim).await
}
