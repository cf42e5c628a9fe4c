//! Cache keys of neighborhood collectives.

use crate::{Edges, block_layout::BlockLayout, plan::RankLayout};

/// The key under which the program of a neighborhood call is cached.
#[derive(Debug)]
pub(crate) struct NeighborhoodKey {
    rank: usize,
    size: usize,
    elem: u64,
    given: usize,
    room: Option<usize>,
    one: bool,
    sends: Option<Box<[usize]>>,
    recvs: Option<Box<[usize]>>,
    edges: Edges,
}

impl NeighborhoodKey {
    pub(crate) fn of(
        place: &RankLayout<'_>,
        elem: u64,
        cut: &BlockLayout<'_>,
        edges: Edges,
    ) -> Self {
        Self {
            rank: place.rank(),
            size: place.size(),
            elem,
            given: cut.send_len,
            room: cut.recv_len,
            one: cut.same_block,
            sends: cut.sends.map(Box::from),
            recvs: cut.recvs.map(Box::from),
            edges,
        }
    }

    pub(crate) fn matches(
        &self,
        place: &RankLayout<'_>,
        elem: u64,
        cut: &BlockLayout<'_>,
        edges: &Edges,
    ) -> bool {
        (self.rank, self.size, self.elem) == (place.rank(), place.size(), elem)
            && (self.given, self.room, self.one) == (cut.send_len, cut.recv_len, cut.same_block)
            && (self.sends.as_deref(), self.recvs.as_deref()) == (cut.sends, cut.recvs)
            && self.edges == *edges
    }
}

#[cfg(test)]
mod tests {
    use super::NeighborhoodKey;
    use crate::{
        Edges,
        block_layout::BlockLayout,
        plan::{EdgePairing, RankLayout},
    };

    #[test]
    fn a_call_is_another_if_anything_is_that_its_program_is_made_of() {
        let edges = || Edges {
            sources: vec![Some(1), None],
            destinations: vec![Some(2), Some(1)],
            pairing: EdgePairing::Grid,
        };
        let turned = Edges {
            pairing: EdgePairing::Graph,
            ..edges()
        };
        let elsewhere = Edges {
            sources: vec![Some(1), Some(1)],
            ..edges()
        };
        let (here, there, more) = (
            RankLayout::new(0, 3),
            RankLayout::new(1, 3),
            RankLayout::new(0, 4),
        );
        let (cut, counts) = (BlockLayout::one_to_all(5), ([5, 5], [5, 4]));
        let longer = BlockLayout::one_to_all(6);
        let in_blocks = BlockLayout {
            same_block: false,
            ..cut
        };
        let in_room = BlockLayout {
            recv_len: Some(5),
            ..cut
        };
        let around = NeighborhoodKey::of(&here, 8, &cut, edges());
        assert!(around.matches(&here, 8, &cut, &edges()));
        for (place, elem, cut, edges) in [
            (here, 4, cut, edges()),
            (there, 8, cut, edges()),
            (more, 8, cut, edges()),
            (here, 8, longer, edges()),
            (here, 8, in_blocks, edges()),
            (here, 8, in_room, edges()),
            (here, 8, BlockLayout::counted(&counts.0, &counts.1), edges()),
            (here, 8, cut, turned),
            (here, 8, cut, elsewhere),
        ] {
            assert!(!around.matches(&place, elem, &cut, &edges));
        }
        let counted = BlockLayout::counted(&counts.0, &counts.1);
        let around = NeighborhoodKey::of(&here, 8, &counted, edges());
        assert!(around.matches(&here, 8, &counted, &edges()));
        assert!(!around.matches(
            &here,
            8,
            &BlockLayout::counted(&counts.1, &counts.0),
            &edges()
        ));
    }
}
