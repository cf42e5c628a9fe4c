//! Communicators that their members make alone.

use ripstop::{Collectives, Comm, ErrorKind, Result, Sum};

use crate::ranks;

#[test]
fn all_members_learn_of_one_that_ends_before_it_makes_its_part() {
    for quitter in 0..5 {
        ranks::run(5, &[], move |runtime| {
            let world = runtime.world();
            if world.rank() == quitter {
                return; // closes its runtime
            }
            let made = runtime.block_on(world.create(&[4, 3, 2, 1, 0]));
            let error = made.expect_err("one member has left");
            // A member that only hears of it may hear of the member that told it, which leaves too. Over datagrams, a rank that
            // leaves before its first message is like one that failed: its address no longer answers.
            let is_told = matches!(
                error.kind,
                ErrorKind::PeerFinished { .. } | ErrorKind::PeerFailed { .. }
            );
            assert!(is_told && error.op == "create", "{error}");
            assert!(error.to_string().contains(file!()), "{error}");
        });
    }
}

#[test]
fn members_make_a_communicator_while_the_other_ranks_do_something_else() {
    for (size, members) in [
        (1, vec![0]),
        (2, vec![1]),
        (4, vec![3, 1, 2]),
        (4, vec![2, 0]),
    ] {
        ranks::run(size, &[], move |runtime| {
            runtime
                .block_on(made_by_members(&runtime.world(), &members))
                .unwrap();
        });
    }
}

async fn made_by_members(world: &Comm, members: &[usize]) -> Result<()> {
    let place = members.iter().position(|&rank| rank == world.rank());
    if let Some(place) = place {
        let part = world.create(members).await?.named("part");
        assert_eq!((part.rank(), part.size()), (place, members.len()));
        let sum = part.all_reduce(world.rank(), Sum).await?;
        assert_eq!(sum, members.iter().sum::<usize>());
        for (rank, &member) in members.iter().enumerate() {
            assert_eq!(part.translate(rank, world), Some(member));
            assert_eq!(world.translate(member, &part), Some(rank));
        }
        assert_eq!(part.translate(part.size(), world), None);
    }
    // The collectives of the parent are as they were.
    let twin = world.dup().await?;
    twin.barrier().await
}
