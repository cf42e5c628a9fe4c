//! A short list that needs no allocation.

/// Values in insertion order. The first [`FEW`] of them are stored inline.
#[derive(Clone, Debug)]
pub(super) struct InlineList<V> {
    first: [Option<V>; FEW],
    more: Vec<V>,
}

/// Number of inline values: the neighbors of most epochs are the faces of a cube, and two are spare.
const FEW: usize = 8;

impl<V: Copy> InlineList<V> {
    pub(super) const fn new() -> Self {
        Self {
            first: [None; FEW],
            more: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: V) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(value),
            None => self.more.push(value),
        }
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = V> + Clone {
        let first = self.first.iter().map_while(|&value| value);
        first.chain(self.more.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, InlineList};

    #[test]
    fn few_and_many_come_back_in_order() {
        for count in [0, 1, FEW, FEW + 3] {
            let mut few = InlineList::new();
            (0..count).for_each(|value| few.push(value));
            assert!(few.iter().eq(0..count), "{count}");
            assert_eq!(few.more.is_empty(), count <= FEW);
        }
    }
}
