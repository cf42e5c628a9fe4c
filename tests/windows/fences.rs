//! Fences.

use ripstop::{Comm, Window};

use crate::worlds::{Rank, everywhere};

#[test]
fn what_was_put_before_a_fence_is_there_after_it() {
    fn all_to_all(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            let mut window = Window::<u64>::allocate(&world, size).await.unwrap();
            window.local_mut()[me] = 77;
            let mut epoch = window.fence().await.unwrap();
            for n in 0..10_u64 {
                for to in 0..size {
                    epoch.put(to, me, [n * 100 + me as u64]).detach();
                }
                epoch = epoch.fence().await.unwrap();
                let all = epoch.get((me + 1) % size, 0, vec![0; size]).await.unwrap();
                assert!(
                    (0..size as u64).all(|from| all.contains(&(n * 100 + from))),
                    "{all:?}"
                );
                epoch = epoch.fence().await.unwrap();
            }
            let mine = epoch.end().await.unwrap();
            assert!(mine.iter().zip(900..).all(|(&got, from)| got == from));
            window.free().await.unwrap();
        })
    }
    everywhere(3, all_to_all);
}

#[test]
fn memory_of_a_leaked_fence_is_out_of_reach_until_another_was_ended() {
    fn leak(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
            let _forgotten = window.fence().await.unwrap();
            assert!(window.try_local_mut().is_err());
            assert!(window.post(&[0]).is_err());
            window.fence().await.unwrap().end().await.unwrap();
            assert_eq!(window.local(), [0]);
        })
    }
    everywhere(2, leak);
}
