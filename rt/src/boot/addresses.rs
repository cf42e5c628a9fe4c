//! Exchanges the network addresses of all ranks: over each node's board, and with one record per node between nodes.

use std::{fmt::Write, time::Duration};

use ripstop_fabric::shm::{Board, PeerState};

use super::{Boot, BootError};

/// Publishes this rank's address, of at most [`Board::NOTE_MAX`] bytes, and returns the addresses of all ranks, in rank
/// order.
///
/// Within a node this uses the board. Between nodes, each node needs one put, one fence, and one get for each node.
///
/// # Errors
/// The launcher fails, a record was not written by this function, or a rank of this node publishes nothing for `limit`.
///
/// # Panics
/// Panics if the address is empty or too long, or if this rank has left a note on the board before.
pub fn exchange(
    boot: &mut Boot,
    board: &Board,
    mine: &[u8],
    limit: Duration,
) -> Result<Vec<Vec<u8>>, BootError> {
    board.leave_note(boot.on_node(), mine);
    collect_addresses(boot, board, limit)
}

/// Second half of [`exchange`]: this rank's address is already on the board, so the others need nothing more from this
/// rank.
pub(crate) fn collect_addresses(
    boot: &mut Boot,
    board: &Board,
    limit: Duration,
) -> Result<Vec<Vec<u8>>, BootError> {
    let (leads, seconds) = (boot.rank == boot.node.leader(), limit.as_secs());
    let alone = boot.node.ranks.len() == boot.size as usize;
    if leads || alone {
        let notes = board.notes(limit).map_err(|missing| {
            let rank = boot.node.ranks[missing as usize];
            match board.state_of(missing) {
                PeerState::Failed => BootError::Failed { rank },
                _ => BootError::Unheard { rank, seconds },
            }
        })?;
        if alone {
            return Ok(notes);
        }
        let record = write(&boot.node.ranks, &notes);
        boot.exchange.put(&key(boot.rank), &record)?;
    }
    boot.exchange.fence()?;
    if leads {
        let addresses = gather(boot)?;
        board.leave_notes_of_job(&addresses);
        return Ok(addresses);
    }
    let rank = boot.node.leader();
    board
        .notes_of_job(limit)
        .map_err(|_| BootError::Unheard { rank, seconds })
}

/// Collects the records of all nodes. A rank that no earlier node's record names is the lowest one of its node, so no
/// list of nodes is needed.
fn gather(boot: &mut Boot) -> Result<Vec<Vec<u8>>, BootError> {
    let mut addresses = vec![Vec::new(); boot.size as usize];
    for leader in 0..boot.size {
        if !addresses[leader as usize].is_empty() {
            continue;
        }
        let record = boot.exchange.get(leader, &key(leader))?.unwrap_or_default();
        let garbled = || BootError::Record {
            leader,
            found: super::error::printable(&record),
        };
        let read = read(&record, boot.size).ok_or_else(garbled)?;
        for (rank, address) in read {
            if address.len() > Board::NOTE_MAX {
                return Err(garbled());
            }
            addresses[rank as usize] = address;
        }
        if addresses[leader as usize].is_empty() {
            return Err(garbled());
        }
    }
    Ok(addresses)
}

fn key(leader: u32) -> String {
    format!("ripstop-node-{leader}")
}

/// Formats a record as `rank:hex,rank:hex`.
fn write(ranks: &[u32], addresses: &[Vec<u8>]) -> String {
    let mut record = String::new();
    for (rank, address) in ranks.iter().zip(addresses) {
        let comma = if record.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(record, "{comma}{rank}:");
        for byte in address {
            let _ = write!(record, "{byte:02x}");
        }
    }
    record
}

fn read(record: &str, size: u32) -> Option<Vec<(u32, Vec<u8>)>> {
    let one = |part: &str| {
        let (rank, hex) = part.split_once(':')?;
        let rank = rank.parse().ok().filter(|&rank| rank < size)?;
        let digits = hex.as_bytes().as_chunks::<2>();
        if hex.is_empty() || !digits.1.is_empty() {
            return None;
        }
        let digit = |ascii: u8| char::from(ascii).to_digit(16);
        let byte = |&[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
        let bytes = digits.0.iter().map(byte);
        Some((rank, bytes.collect::<Option<_>>()?))
    };
    record.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::boot::{Node, threads};

    #[test]
    fn ranks_of_two_nodes_hear_of_each_other() {
        let nodes = [vec![0, 2], vec![1, 3, 4]];
        let boards = [2, 3].map(|ranks| Board::create_in_job(ranks, 5).unwrap());
        thread::scope(|scope| {
            for mut boot in threads(5) {
                let at = usize::from(nodes[1].contains(&boot.rank));
                let (ranks, board) = (nodes[at].clone(), &boards[at]);
                scope.spawn(move || {
                    boot.node = Node {
                        ranks,
                        each: None,
                        most: 3,
                    };
                    let mine = [b'r', b'0' + u8::try_from(boot.rank).unwrap()];
                    let all = exchange(&mut boot, board, &mine, Duration::from_secs(60)).unwrap();
                    assert_eq!(all, [b"r0", b"r1", b"r2", b"r3", b"r4"].map(|a| a.to_vec()));
                    boot.exchange.finalize().unwrap();
                });
            }
        });
    }

    #[test]
    fn a_rank_that_stays_away_is_named() {
        let board = Board::create(2).unwrap();
        let mut boot = super::super::one_of(0, 2);
        let error = exchange(&mut boot, &board, b"0", Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    }

    #[test]
    fn garbled_records_are_refused() {
        assert_eq!(read("7:00ff", 8), Some(vec![(7, vec![0, 255])]));
        for wrong in [
            "", "7", "7:", "7:0", "7:+f", "8:00", "x:00", "7:00,", "7:é0",
        ] {
            assert_eq!(read(wrong, 8), None, "{wrong}");
        }
    }
}
