//! Cache keys of neighborhood collectives.

use crate::{Edges, neighborhood::Cut, plan::Place};

/// The key under which the program of a neighborhood call is cached.
#[derive(Debug)]
pub(crate) struct Around {
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

impl Around {
    pub(crate) fn of(place: &Place<'_>, elem: u64, cut: &Cut<'_>, edges: Edges) -> Self {
        Self {
            rank: place.rank(),
            size: place.size(),
            elem,
            given: cut.given,
            room: cut.room,
            one: cut.one,
            sends: cut.sends.map(Box::from),
            recvs: cut.recvs.map(Box::from),
            edges,
        }
    }

    pub(crate) fn is(&self, place: &Place<'_>, elem: u64, cut: &Cut<'_>, edges: &Edges) -> bool {
        (self.rank, self.size, self.elem) == (place.rank(), place.size(), elem)
            && (self.given, self.room, self.one) == (cut.given, cut.room, cut.one)
            && (self.sends.as_deref(), self.recvs.as_deref()) == (cut.sends, cut.recvs)
            && self.edges == *edges
    }
}

#[cfg(test)]
mod tests {
    use super::Around;
    use crate::{
        Edges,
        neighborhood::Cut,
        plan::{Pairing, Place},
    };

    #[test]
    fn a_call_is_another_if_anything_is_that_its_program_is_made_of() {
        let edges = || Edges {
            sources: vec![Some(1), None],
            destinations: vec![Some(2), Some(1)],
            pairing: Pairing::Grid,
        };
        let turned = Edges {
            pairing: Pairing::Graph,
            ..edges()
        };
        let elsewhere = Edges {
            sources: vec![Some(1), Some(1)],
            ..edges()
        };
        let (here, there, more) = (Place::new(0, 3), Place::new(1, 3), Place::new(0, 4));
        let (cut, counts) = (Cut::one_to_all(5), ([5, 5], [5, 4]));
        let longer = Cut::one_to_all(6);
        let in_blocks = Cut { one: false, ..cut };
        let in_room = Cut {
            room: Some(5),
            ..cut
        };
        let around = Around::of(&here, 8, &cut, edges());
        assert!(around.is(&here, 8, &cut, &edges()));
        for (place, elem, cut, edges) in [
            (here, 4, cut, edges()),
            (there, 8, cut, edges()),
            (more, 8, cut, edges()),
            (here, 8, longer, edges()),
            (here, 8, in_blocks, edges()),
            (here, 8, in_room, edges()),
            (here, 8, Cut::counted(&counts.0, &counts.1), edges()),
            (here, 8, cut, turned),
            (here, 8, cut, elsewhere),
        ] {
            assert!(!around.is(&place, elem, &cut, &edges));
        }
        let counted = Cut::counted(&counts.0, &counts.1);
        let around = Around::of(&here, 8, &counted, edges());
        assert!(around.is(&here, 8, &counted, &edges()));
        assert!(!around.is(&here, 8, &Cut::counted(&counts.1, &counts.0), &edges()));
    }
}
