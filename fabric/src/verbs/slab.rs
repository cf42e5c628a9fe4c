//! Values by number. A number is used again when its value was removed.

/// Values by number.
#[derive(Debug)]
pub(super) struct VerbsSlab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> VerbsSlab<T> {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.places[at as usize] = Some(value);
            return at;
        }
        self.places.push(Some(value));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    /// Returns the numbers of all values that match.
    pub(super) fn all(&self, is_it: impl Fn(&T) -> bool) -> Vec<u32> {
        let found = |place: &Option<T>| place.as_ref().is_some_and(&is_it);
        let all = (0..).zip(&self.places);
        all.filter_map(|(at, place)| found(place).then_some(at))
            .collect()
    }

    /// Returns the number of the first value that matches.
    pub(super) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        let found = |place: &Option<T>| place.as_ref().is_some_and(&is_it);
        (0..)
            .zip(&self.places)
            .find_map(|(at, place)| found(place).then_some(at))
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::VerbsSlab;

    #[test]
    fn a_number_is_used_again_when_its_value_is_gone_and_not_before() {
        let mut slab = VerbsSlab::new();
        let [a, b] = ["a", "b"].map(|value| slab.insert(value));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!((slab.remove(a), slab.get(a), slab.len()), (None, None, 1));
        assert_eq!((slab.insert("c"), slab.get(b)), (a, Some(&"b")));
        assert_eq!(slab.remove(99), None);
    }
}
