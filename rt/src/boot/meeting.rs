//! How the ranks of a node meet on its board, and which of them share memory.
//!
//! A launcher says which ranks are on one node. Some of them may be in containers of their own, which have no place in common
//! where the ranks could meet. The node's lowest rank, which creates the board, finds out which ranks cannot reach it. Those
//! count as ranks of other nodes. The ranks that remain use a board of their own, so that each place on it has a rank.
//!
//! A rank in namespaces of its own publishes where it can be met, and so does the creator of the board. So both know whether
//! they meet, and nothing depends on time. Only a creator that misses ranks reads what they have published.

use std::time::Duration;

use ripstop_fabric::shm::{Board, BoardDecision, MeetingPlaces};

use super::{ArrivalGuard, Boot, BootError};

/// Returns the board of the ranks that share memory with this rank, and keeps only these in `boot.node`. The lowest of them
/// creates the board. The call takes one fence, and this rank has arrived on the board when the call returns.
///
/// # Errors
/// The launcher fails, there is no memory, the board cannot be reached, or ranks do not arrive within `limit`. The
/// error says what to do.
pub fn meet(boot: &mut Boot, limit: Duration) -> Result<Board, BootError> {
    if boot.size == 1 {
        return Board::create(1).map_err(unmade);
    }
    if boot.rank == boot.node.leader() {
        lead(boot, limit)
    } else {
        follow(boot, limit)
    }
}

/// Meets the other ranks of the node as their lowest one.
fn lead(boot: &mut Boot, limit: Duration) -> Result<Board, BootError> {
    let (board, arrival) = create(boot)?;
    let places = MeetingPlaces::own();
    let published = format!("{}{BESIDE}{places}", board.address());
    boot.exchange.put(&board_key(boot.rank), &published)?;
    boot.exchange.fence()?;
    if board.size() == 1 {
        arrival.release();
        return Ok(board);
    }
    // The meeting hands the board to ranks that cannot open it by its address alone. A rank that is refused learns the
    // reason.
    let meeting = board.meet();
    let apart = gather(boot, &board, &places, limit).inspect_err(|_| {
        board.fail_absent(); // No rank can arrive any more once the creator has ended.
        board.decide(BoardDecision::Together); // The ranks that have arrived go on, and notice that this one has failed.
    })?;
    drop(meeting);
    if apart.is_empty() {
        board.decide(BoardDecision::Together);
        arrival.release();
        return Ok(board);
    }
    report(boot, &apart);
    leave_apart(boot, &board, &apart, limit)
}

/// Creates the board of the ranks that `boot` has on this node.
fn create(boot: &Boot) -> Result<(Board, ArrivalGuard), BootError> {
    let ranks = u32::try_from(boot.node.ranks.len()).unwrap_or(u32::MAX);
    let others = if ranks == boot.size { 0 } else { boot.size };
    let board = Board::create_in_job(ranks, others).map_err(unmade)?;
    let arrival = ArrivalGuard::new(&board, boot.on_node());
    Ok((board, arrival))
}

/// Waits for the ranks that can reach the board, and returns the others.
fn gather(
    boot: &mut Boot,
    board: &Board,
    places: &MeetingPlaces,
    limit: Duration,
) -> Result<Vec<u32>, BootError> {
    if board.wait_for_all(MISSED_AFTER.min(limit)).is_ok() {
        return Ok(Vec::new());
    }
    let apart = ranks_apart(boot, places)?;
    let together = board.size() - u32::try_from(apart.len()).unwrap_or(0);
    let absent = |attached| BootError::Absent {
        attached,
        ranks: together,
        seconds: limit.as_secs(),
    };
    board.wait_for_others(together - 1, limit).map_err(absent)?;
    Ok(apart)
}

/// Returns the ranks of the node that have no place where they can meet this one.
fn ranks_apart(boot: &mut Boot, places: &MeetingPlaces) -> Result<Vec<u32>, BootError> {
    let mut apart = Vec::new();
    let others = boot.node.ranks.iter().skip(1).copied();
    for rank in others {
        let published = boot.exchange.get(rank, &places_key(rank))?;
        let theirs = published.and_then(|text| MeetingPlaces::parse(&text));
        if theirs.is_some_and(|theirs| !places.meet(&theirs)) {
            apart.push(rank);
        }
    }
    Ok(apart)
}

/// Tells the ranks on the board which ranks are apart, and meets them on another one.
fn leave_apart(
    boot: &mut Boot,
    all: &Board,
    apart: &[u32],
    limit: Duration,
) -> Result<Board, BootError> {
    for (place, rank) in (0..).zip(&boot.node.ranks) {
        if apart.contains(rank) {
            all.mark_apart(place);
        }
    }
    let mut together = boot.node.ranks.clone();
    together.retain(|rank| !apart.contains(rank));
    boot.split_node(together);
    let created = create(boot);
    // Without a note, the others know that this rank has failed.
    if let Ok((board, _)) = &created {
        all.leave_note(0, board.address().as_bytes());
    }
    let meeting = created.as_ref().ok().map(|(board, _)| board.meet());
    all.decide(BoardDecision::Split);
    let (board, arrival) = created?;
    let seconds = limit.as_secs();
    board
        .wait_for_all(limit)
        .map_err(|attached| BootError::Absent {
            attached,
            ranks: board.size(),
            seconds,
        })?;
    drop(meeting);
    arrival.release();
    Ok(board)
}

/// Logs, once per node, which of its ranks share no memory with its lowest rank.
fn report(boot: &Boot, apart: &[u32]) {
    let apart: Vec<String> = apart.iter().map(u32::to_string).collect();
    let (ranks, leader) = (apart.join(", "), boot.rank);
    tracing::info!(
        target: "ripstop::boot",
        "the launcher says that rank {leader} and these ranks are on one node: {ranks}; they share no memory with it, because \
         they are in other namespaces and share neither the network namespace nor /tmp or /dev/shm, so they are reached like \
         ranks of other nodes"
    );
}

/// Meets the other ranks of the node on the board that their lowest rank has created.
fn follow(boot: &mut Boot, limit: Duration) -> Result<Board, BootError> {
    let leader = boot.node.leader();
    let own = MeetingPlaces::of_contained_process();
    if let Some(own) = &own {
        boot.exchange
            .put(&places_key(boot.rank), &own.to_string())?;
    }
    boot.exchange.fence()?;
    // The leader puts the address before it reaches the fence, so if there is none it has failed.
    let failed = BootError::Failed { rank: leader };
    let published = boot.exchange.get(leader, &board_key(leader))?;
    let published = published.ok_or(failed)?;
    let (address, places) = published.split_once(BESIDE).unwrap_or((&published, ""));
    let theirs = MeetingPlaces::parse(places);
    if let (Some(own), Some(theirs)) = (own, theirs)
        && !own.meet(&theirs)
    {
        return stay_alone(boot);
    }
    let board = Board::attach(address).map_err(unreached)?;
    board.arrive(boot.on_node());
    match board.decision(limit) {
        Some(BoardDecision::Split) => rejoin(boot, &board),
        // Without a decision the leader has failed, which this rank notices later.
        Some(BoardDecision::Together) | None => Ok(board),
    }
}

/// Creates a board for this rank only.
fn stay_alone(boot: &mut Boot) -> Result<Board, BootError> {
    boot.split_node(vec![boot.rank]);
    let (board, arrival) = create(boot)?;
    arrival.release();
    Ok(board)
}

/// Leaves the board of the launcher's node for that of the ranks which share memory.
fn rejoin(boot: &mut Boot, all: &Board) -> Result<Board, BootError> {
    let leader = boot.node.leader();
    all.fail(boot.on_node()); // Ends what serves other ranks on that board, which no rank uses any more.
    let ranks = (0..).zip(&boot.node.ranks);
    let together = ranks.filter(|(place, _)| !all.is_apart(*place));
    boot.split_node(together.map(|(_, rank)| *rank).collect());
    let address = all.note_of(0);
    let address = address.and_then(|address| String::from_utf8(address).ok());
    let address = address.ok_or(BootError::Failed { rank: leader })?;
    let board = Board::attach(&address).map_err(unreached)?;
    board.arrive(boot.on_node());
    Ok(board)
}

fn board_key(leader: u32) -> String {
    format!("ripstop-board-{leader}")
}

fn places_key(rank: u32) -> String {
    format!("ripstop-places-{rank}")
}

fn unmade(source: std::io::Error) -> BootError {
    BootError::io("making the board of this node", source)
}

fn unreached(source: std::io::Error) -> BootError {
    BootError::io("joining the board of this node", source)
}

/// Character between a board's address and its creator's meeting places.
const BESIDE: char = '/';

/// Time without a new rank on the board after which its creator reads where the missing ones can be met. Reading that earlier
/// would slow down the start of ranks that share memory.
const MISSED_AFTER: Duration = Duration::from_millis(20);
