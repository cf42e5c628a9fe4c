//! A list that needs no allocation while it is short.

/// Values in insertion order. The first [`FEW`] of them are stored inline.
#[derive(Clone, Debug)]
pub(super) struct InlineList<V> {
    first: [Option<V>; FEW],
    more: Vec<V>,
}

/// Number of inline values: one target, or both neighbors in a ring.
///
/// A list moves with its future. Moving room for more values takes longer than the allocation of a longer list.
const FEW: usize = 2;

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

    /// Applies `change` to every value.
    #[inline]
    pub(super) fn update(&mut self, change: impl Fn(&mut V)) {
        self.first.iter_mut().flatten().for_each(&change);
        self.more.iter_mut().for_each(change);
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
            few.update(|value| *value += 1);
            assert!(few.iter().eq(1..=count), "{count}");
        }
    }
}
