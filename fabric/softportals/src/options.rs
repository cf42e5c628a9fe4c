//! Option bits. The numbers are this library's own; each C interface maps its own numbers to them.

/// Defines a set of named bits.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident: $($(#[$bit_doc:meta])* $bit:ident = $at:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u32);

        impl $name {
            /// The empty set.
            pub const NONE: Self = Self(0);
            $($(#[$bit_doc])* pub const $bit: Self = Self(1 << $at);)+

            /// Returns true if all bits of `other` are set.
            #[must_use]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

options! {
    /// Options of a list entry or match list entry.
    EntryOptions:
    /// The entry admits puts and atomics.
    OP_PUT = 0,
    /// The entry admits gets; fetching atomics need this and [`Self::OP_PUT`].
    OP_GET = 1,
    /// The first operation unlinks the entry.
    USE_ONCE = 2,
    /// The entry sends no acknowledgments, even on request.
    ACK_DISABLE = 3,
    /// On the overflow list: messages in this entry are not remembered as unexpected.
    UNEXPECTED_HDR_DISABLE = 4,
    /// All memory of the entry can be accessed. A hint, ignored here.
    IS_ACCESSIBLE = 5,
    /// No LINK event.
    EVENT_LINK_DISABLE = 6,
    /// No PUT, GET, ATOMIC and `FETCH_ATOMIC` events.
    EVENT_COMM_DISABLE = 7,
    /// No `PT_DISABLED` event when a message to this entry exhausts a resource.
    EVENT_FLOWCTRL_DISABLE = 8,
    /// Only communication and overflow events that report a failure.
    EVENT_SUCCESS_DISABLE = 9,
    /// No `PUT_OVERFLOW`, `GET_OVERFLOW` and other overflow events.
    EVENT_OVER_DISABLE = 10,
    /// No `AUTO_UNLINK` and `AUTO_FREE` events.
    EVENT_UNLINK_DISABLE = 11,
    /// The entry's counter counts communication events.
    EVENT_CT_COMM = 12,
    /// The entry's counter counts overflow events.
    EVENT_CT_OVERFLOW = 13,
    /// The entry's counter counts the bytes of successful events instead of the events.
    EVENT_CT_BYTES = 14,
    /// Messages follow each other in the entry's memory; their own offset is ignored.
    MANAGE_LOCAL = 15,
    /// A message that does not fit does not match.
    NO_TRUNCATE = 16,
    /// With [`Self::MANAGE_LOCAL`]: messages may start at multiples of 8.
    MAY_ALIGN = 17,
    /// With [`Self::MANAGE_LOCAL`]: claimed unexpected messages advance the entry's offset by their requested length.
    LOCAL_INC_UH_RLENGTH = 18,
    /// With [`Self::MANAGE_LOCAL`]: claimed unexpected messages advance the entry's offset by their stored length.
    LOCAL_INC_UH_MLENGTH = 19,
}

options! {
    /// Options of a memory descriptor.
    MdOptions:
    /// Only events that report a failure.
    EVENT_SUCCESS_DISABLE = 0,
    /// No SEND events.
    EVENT_SEND_DISABLE = 1,
    /// The descriptor's counter counts SEND events.
    EVENT_CT_SEND = 2,
    /// The descriptor's counter counts REPLY events.
    EVENT_CT_REPLY = 3,
    /// The descriptor's counter counts acknowledgments.
    EVENT_CT_ACK = 4,
    /// The descriptor's counter counts the bytes of successful events instead of the events.
    EVENT_CT_BYTES = 5,
    /// Messages need no order. A hint, ignored here: they stay in order.
    UNORDERED = 6,
    /// The data of short puts is read before the call returns.
    VOLATILE = 7,
    /// Messages may be lost. This is a hint without effect here, because no message is lost.
    UNRELIABLE = 8,
}

options! {
    /// Options of a portal table entry.
    TableOptions:
    /// All list entries are used once. A hint, ignored here.
    ONLY_USE_ONCE = 0,
    /// No list entry has [`EntryOptions::NO_TRUNCATE`]. A hint, ignored here.
    ONLY_TRUNCATE = 1,
    /// Flow control: an exhausted resource disables the portal table entry instead of dropping a message.
    FLOWCTRL = 2,
    /// The portal table entry starts disabled.
    ALLOC_DISABLED = 3,
    /// Messages need not match in order. A hint, ignored here: they do.
    MATCH_UNORDERED = 4,
}

#[cfg(test)]
mod tests {
    use super::EntryOptions;

    #[test]
    fn bits_add_up() {
        let both = EntryOptions::OP_PUT | EntryOptions::OP_GET;
        assert!(both.has(EntryOptions::OP_GET) && both.has(both));
        assert!(!EntryOptions::OP_GET.has(both));
    }
}
