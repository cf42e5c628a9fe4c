//! Option bits. The numbers are ours; each C interface maps its own to them.

/// A set of bits with names.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident: $($(#[$bit_doc:meta])* $bit:ident = $at:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u32);

        impl $name {
            /// None of them.
            pub const NONE: Self = Self(0);
            $($(#[$bit_doc])* pub const $bit: Self = Self(1 << $at);)+

            /// Whether all bits of `other` are set.
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
    /// How a list entry or match list entry behaves.
    EntryOptions:
    /// It takes puts and atomics.
    OP_PUT = 0,
    /// It answers gets; fetching atomics need this and [`Self::OP_PUT`].
    OP_GET = 1,
    /// It is unlinked by the first operation.
    USE_ONCE = 2,
    /// No acknowledgement leaves it, even if one was asked for.
    ACK_DISABLE = 3,
    /// On the overflow list: its messages are not remembered as unexpected.
    UNEXPECTED_HDR_DISABLE = 4,
    /// All its memory can be touched. A hint that changes nothing here.
    IS_ACCESSIBLE = 5,
    /// No LINK event.
    EVENT_LINK_DISABLE = 6,
    /// No PUT, GET, ATOMIC and `FETCH_ATOMIC` events.
    EVENT_COMM_DISABLE = 7,
    /// No `PT_DISABLED` event when a message to it exhausts something.
    EVENT_FLOWCTRL_DISABLE = 8,
    /// Of the communication and overflow events, only those that tell of a failure.
    EVENT_SUCCESS_DISABLE = 9,
    /// No `PUT_OVERFLOW`, `GET_OVERFLOW`.. events.
    EVENT_OVER_DISABLE = 10,
    /// No `AUTO_UNLINK` and `AUTO_FREE` events.
    EVENT_UNLINK_DISABLE = 11,
    /// Its counter counts communication events.
    EVENT_CT_COMM = 12,
    /// Its counter counts overflow events.
    EVENT_CT_OVERFLOW = 13,
    /// Its counter counts the bytes of successes instead.
    EVENT_CT_BYTES = 14,
    /// Messages follow each other in its memory; their own offset is ignored.
    MANAGE_LOCAL = 15,
    /// A message that does not fit does not match.
    NO_TRUNCATE = 16,
    /// With [`Self::MANAGE_LOCAL`]: messages may start at multiples of 8.
    MAY_ALIGN = 17,
    /// With [`Self::MANAGE_LOCAL`]: unexpected messages that it matches advance its offset by their whole length.
    LOCAL_INC_UH_RLENGTH = 18,
    /// With [`Self::MANAGE_LOCAL`]: unexpected messages that it matches advance its offset by what is there of them.
    LOCAL_INC_UH_MLENGTH = 19,
}

options! {
    /// How a memory descriptor behaves.
    MdOptions:
    /// Only events that tell of a failure.
    EVENT_SUCCESS_DISABLE = 0,
    /// No SEND events.
    EVENT_SEND_DISABLE = 1,
    /// Its counter counts SEND events.
    EVENT_CT_SEND = 2,
    /// Its counter counts REPLY events.
    EVENT_CT_REPLY = 3,
    /// Its counter counts acknowledgements.
    EVENT_CT_ACK = 4,
    /// Its counter counts the bytes of successes instead.
    EVENT_CT_BYTES = 5,
    /// The order of messages does not matter. A hint: they stay in order.
    UNORDERED = 6,
    /// Short puts are read before the call returns.
    VOLATILE = 7,
    /// Messages may be lost. A hint: they are not.
    UNRELIABLE = 8,
}

options! {
    /// How a portal table entry behaves.
    TableOptions:
    /// All its entries are used once. A hint.
    ONLY_USE_ONCE = 0,
    /// None of its entries is [`EntryOptions::NO_TRUNCATE`]. A hint.
    ONLY_TRUNCATE = 1,
    /// When something is exhausted, it is disabled instead of losing a message.
    FLOWCTRL = 2,
    /// It starts disabled.
    ALLOC_DISABLED = 3,
    /// Messages need not match in order. A hint: they do.
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
