//! Regions that a peer has asked this rank to release, and commands that may still touch them. Pure.

use super::wire::RegionId;

/// Regions whose release is reported when the commands have completed that were in flight when the owner asked.
#[derive(Debug, Default)]
pub(super) struct RegionReleases {
    all: Vec<(RegionId, Vec<u32>)>,
}

impl RegionReleases {
    /// Records the owner's request, and the commands in flight then. Later commands find that the region no longer exists.
    pub(super) fn ask(&mut self, name: RegionId, in_flight: Vec<u32>) {
        self.all.push((name, in_flight));
    }

    /// Returns true if the owner waits for the release of the region in this slot.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.all.iter().any(|(name, _)| name.slot == slot)
    }

    /// Notes that a command has completed.
    pub(super) fn handle_end(&mut self, op: u32) {
        for (_, in_flight) in &mut self.all {
            in_flight.retain(|other| *other != op);
        }
    }

    /// Removes and returns a region that no command touches any more.
    pub(super) fn poll_over(&mut self) -> Option<RegionId> {
        let over = |(_, in_flight): &(RegionId, Vec<u32>)| in_flight.is_empty();
        let at = self.all.iter().position(over)?;
        Some(self.all.remove(at).0)
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{RegionId, RegionReleases};

    const fn name(slot: u32) -> RegionId {
        RegionId {
            slot,
            generation: 1,
        }
    }

    #[test]
    fn a_region_is_over_when_those_have_ended_that_were_under_way_whatever_began_since() {
        let mut forgetting = RegionReleases::default();
        forgetting.ask(name(1), vec![4, 5]);
        forgetting.handle_end(4);
        forgetting.ask(name(2), vec![5, 6]); // 6 began since
        assert_eq!(forgetting.poll_over(), None);
        forgetting.handle_end(5);
        assert_eq!(forgetting.poll_over(), Some(name(1)));
        assert_eq!(forgetting.poll_over(), None);
        forgetting.handle_end(6);
        assert_eq!(forgetting.poll_over(), Some(name(2)));
        forgetting.ask(name(3), vec![]);
        assert_eq!(forgetting.poll_over(), Some(name(3)));
    }
}
