//! How the ranks of a node meet on its board.

use std::time::Duration;

use ripstop_fabric::shm::Board;

use super::{ArrivalGuard, Boot, BootError};

/// Returns the board of this rank's node. The node's lowest rank makes it and publishes its address. Takes one fence.
/// This rank has arrived on the board when this returns.
///
/// # Errors
/// The launcher fails, there is no memory, the board cannot be reached, or ranks do not arrive within `limit`. The
/// error says what to do.
pub fn meet(boot: &mut Boot, limit: Duration) -> Result<Board, BootError> {
    let io = |source| BootError::io("making the board of this node", source);
    let ranks = u32::try_from(boot.node.ranks.len()).unwrap_or(u32::MAX);
    if boot.size == 1 {
        return Board::create(1).map_err(io);
    }
    let others = if ranks == boot.size { 0 } else { boot.size };
    let leader = boot.node.leader();
    let key = format!("ripstop-board-{leader}");
    let made = if boot.rank == leader {
        let board = Board::create_in_job(ranks, others).map_err(io)?;
        let arrival = ArrivalGuard::new(&board, boot.on_node());
        boot.exchange.put(&key, &board.address())?;
        Some((board, arrival))
    } else {
        None
    };
    boot.exchange.fence()?;
    let Some((board, arrival)) = made else {
        return attach(boot, leader, &key);
    };
    // Serves ranks that cannot open the board by its address alone, and tells the others why that fails.
    let meeting = (ranks > 1).then(|| board.meet());
    let seconds = limit.as_secs();
    board.wait_for_all(limit).map_err(|attached| {
        board.fail_absent(); // No rank can arrive any more once the maker has ended.
        BootError::Absent {
            attached,
            ranks,
            seconds,
        }
    })?;
    drop(meeting);
    arrival.release();
    Ok(board)
}

fn attach(boot: &mut Boot, leader: u32, key: &str) -> Result<Board, BootError> {
    // The leader puts the address before it reaches the fence, so if there is none it has failed.
    let failed = BootError::Failed { rank: leader };
    let address = boot.exchange.get(leader, key)?.ok_or(failed)?;
    let board = Board::attach(&address)
        .map_err(|source| BootError::io("joining the board of this node", source))?;
    board.arrive(boot.on_node());
    Ok(board)
}
