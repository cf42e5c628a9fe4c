//! Parts of arrays that ranks exchange until one of them dies.

use ripstop::{Collectives, Comm, Result, buffer::Layout};

use crate::roles::{afterwards, failed, ready};

/// Elements of a face: enough that ranks of one node unpack it from the sender's memory.
const FACE: usize = 20_000;

/// Every rank exchanges faces with all others until one is killed and all others know it.
pub(crate) async fn exchange(world: &Comm) -> Result<()> {
    let me = world.rank();
    let face = Layout::subarray(&[FACE, 2], &[0..FACE, 1..2]);
    let mut array = vec![0_u64; 2 * FACE];
    let mut others: Vec<usize> = (0..world.size()).filter(|&rank| rank != me).collect();
    world.barrier().await?;
    ready();
    let mut victim = None;
    for round in 0.. {
        let knew = victim.is_some();
        others.retain(|&peer| Some(peer) != victim);
        let content = |from: usize, knows: bool| round << 8 | (from as u64) << 1 | u64::from(knows);
        array.fill(content(me, knew));
        let inboxes: Vec<_> = others
            .iter()
            .map(|&peer| world.recv_packed(peer, 1, &face))
            .collect();
        let sends: Vec<_> = others
            .iter()
            .map(|&peer| world.send_packed(peer, 1, &array, &face))
            .collect();
        let mut all_know = knew;
        for (inbox, &peer) in inboxes.into_iter().zip(&others) {
            match inbox.unpack_into(&mut array).await {
                Ok(_) => {
                    let knows = array[1] & 1 == 1;
                    let expected = [content(me, knew), content(peer, knows)];
                    assert!(
                        array.chunks(2).all(|pair| pair == expected),
                        "round {round} of rank {peer}"
                    );
                    all_know &= knows;
                }
                Err(gone) => victim = Some(failed(&gone.error.kind)),
            }
        }
        for sent in sends {
            if let Err(gone) = sent.await {
                victim = Some(failed(&gone.error.kind));
            }
        }
        if all_know {
            break;
        }
    }
    afterwards(world, victim.expect("every rank knows")).await
}
