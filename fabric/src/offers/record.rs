//! What one rank offers, as bytes for the exchange of addresses.
//!
//! | bytes | meaning |
//! |---|---|
//! | 4 | format and its version |
//! | 1 | number of networks |
//! | 1, n | length of a network's name, and the name |
//! | 1 | 1 if the network is offered, otherwise 0 |
//! | 1, n | if it is offered: length of the kind of the rank's link, and the kind |
//! | 1, n | length of the rank's address in it, and the address; or of the reason why it is not offered, and that text |
//!
//! The lines from the name on repeat for each network.

use crate::driver::{ADDRESS_MAX, LINK_KIND_MAX};

/// Networks that a rank knows, each with its address there or the reason why it does not offer the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfferRecord<'a>(Vec<(&'a str, OfferedAddress<'a>)>);

/// A rank's end of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkAddress<'a> {
    pub(super) bytes: &'a [u8],
    /// Kind of the link; the ranks of a job must have links of the same kind.
    pub(super) kind: &'a str,
}

/// Address of a rank in a network, or why the rank does not offer the network.
pub(super) type OfferedAddress<'a> = Result<LinkAddress<'a>, &'a str>;

impl<'a> OfferRecord<'a> {
    /// Returns what the rank says about a network, if it knows the network.
    pub(super) fn offered(&self, network: &str) -> Option<OfferedAddress<'a>> {
        let mut entries = self.0.iter();
        let found = entries.find(|(name, _)| *name == network);
        found.map(|(_, offered)| *offered)
    }

    /// Reads a record, which another process may have garbled. The error says what is wrong with it.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let mut rest = RecordReader(bytes);
        if rest.take(FORMAT.len()) != Some(&FORMAT) {
            return Err("the record is no list of networks, or one of another version");
        }
        let networks = rest.byte().ok_or(CUT)?;
        if usize::from(networks) > NETWORKS_MAX {
            return Err("the record has too many networks");
        }
        let mut entries: Vec<(&str, OfferedAddress<'_>)> = Vec::new();
        for _ in 0..networks {
            let (name, offered) = rest.entry()?;
            if entries.iter().any(|(known, _)| *known == name) {
                return Err("the record names a network twice");
            }
            entries.push((name, offered));
        }
        match rest.0 {
            [] => Ok(Self(entries)),
            _ => Err("the record has bytes behind its last network"),
        }
    }
}

/// Returns the record of a rank. Long reasons are cut.
///
/// # Panics
/// Panics if there are too many networks, one whose name or address is empty or too long, or a kind that is too long.
pub(super) fn encode(networks: &[(&str, OfferedAddress<'_>)]) -> Vec<u8> {
    let count = networks.len();
    assert!(count <= NETWORKS_MAX, "{count} networks");
    let mut record = FORMAT.to_vec();
    record.push(u8::try_from(count).unwrap_or(u8::MAX));
    for (name, offered) in networks {
        assert!(is_name(name.as_bytes()), "the network {name:?}");
        push(&mut record, name.as_bytes());
        record.push(u8::from(offered.is_ok()));
        match offered {
            Ok(LinkAddress { kind, bytes }) => {
                let fits = (1..=ADDRESS_MAX).contains(&bytes.len()) && kind.len() <= LINK_KIND_MAX;
                assert!(fits, "{} bytes of {name}, of kind {kind:?}", bytes.len());
                push(&mut record, kind.as_bytes());
                push(&mut record, bytes);
            }
            Err(reason) => push(&mut record, shortened(reason).as_bytes()),
        }
    }
    record
}

fn push(record: &mut Vec<u8>, bytes: &[u8]) {
    // All parts have their limits, which are below 256.
    record.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    record.extend(bytes);
}

/// Returns as much of a text as a record has room for, on one line.
fn shortened(text: &str) -> String {
    let printable = text
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one });
    if text.len() <= REASON_MAX {
        return printable.collect();
    }
    let mut room = REASON_MAX - ELLIPSIS.len();
    let fitting = printable.take_while(|one| {
        let fits = one.len_utf8() <= room;
        room = room.saturating_sub(one.len_utf8());
        fits
    });
    fitting.collect::<String>() + ELLIPSIS
}

/// The part of a record that was not read yet.
struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn entry(&mut self) -> Result<(&'a str, OfferedAddress<'a>), &'static str> {
        let name = self.counted(NAME_MAX)?;
        let name = str::from_utf8(name).ok().filter(|_| is_name(name));
        let name = name.ok_or("the record has a network whose name is empty or not printable")?;
        let offered = match self.byte().ok_or(CUT)? {
            0 => Err(printable(self.counted(REASON_MAX)?)?),
            1 => Ok(self.address()?),
            _ => {
                return Err(
                    "the record says of a network neither that it is offered nor that it is not",
                );
            }
        };
        Ok((name, offered))
    }

    fn address(&mut self) -> Result<LinkAddress<'a>, &'static str> {
        let kind = printable(self.counted(LINK_KIND_MAX)?)?;
        match self.counted(ADDRESS_MAX)? {
            [] => Err("the record has an empty address"),
            bytes => Ok(LinkAddress { bytes, kind }),
        }
    }

    /// Takes a byte with a length, and as many bytes as it says.
    fn counted(&mut self, max: usize) -> Result<&'a [u8], &'static str> {
        let len = usize::from(self.byte().ok_or(CUT)?);
        if len > max {
            return Err("the record has a text or an address that is too long");
        }
        self.take(len).ok_or(CUT)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|one| one[0])
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic)
}

/// Returns a text of another process. It must be printable, because errors show it.
fn printable(text: &[u8]) -> Result<&str, &'static str> {
    let text = str::from_utf8(text).ok();
    text.filter(|text| !text.contains(char::is_control))
        .ok_or("the record has a text that is not printable")
}

const FORMAT: [u8; 4] = *b"net\x01";
const CUT: &str = "the record ends too early";
const ELLIPSIS: &str = "…";
/// Most networks in a record.
pub(super) const NETWORKS_MAX: usize = 3;
const NAME_MAX: usize = 16;
/// Most bytes of a reason. Every rank sends its reasons to all others, so they are short. The rank itself has the whole
/// text.
const REASON_MAX: usize = 120;
/// Most bytes of a record.
pub const RECORD_MAX: usize =
    FORMAT.len() + 1 + NETWORKS_MAX * (4 + NAME_MAX + LINK_KIND_MAX + ADDRESS_MAX);
const _: () = assert!(
    REASON_MAX <= ADDRESS_MAX && ADDRESS_MAX < 256,
    "each length of a record fits into a byte"
);

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{any, prop_assert, prop_assert_eq, proptest},
    };

    use super::{
        ADDRESS_MAX, LINK_KIND_MAX, LinkAddress, OfferRecord, OfferedAddress, REASON_MAX,
        RECORD_MAX, encode,
    };

    const VERBS: &str = "verbs";

    fn address(bytes: &[u8]) -> OfferedAddress<'_> {
        Ok(LinkAddress { bytes, kind: "" })
    }

    #[test]
    fn what_a_rank_offers_and_withholds_is_read_by_others() {
        let roce = Ok(LinkAddress {
            bytes: &[0; ADDRESS_MAX],
            kind: "RoCE",
        });
        let networks = [
            ("portals", Err("no device")),
            (VERBS, roce),
            ("tcp", address(&[7])),
        ];
        let bytes = encode(&networks);
        let record = OfferRecord::decode(&bytes).unwrap();
        for (name, offered) in networks {
            assert_eq!(record.offered(name), Some(offered));
        }
        assert_eq!(record.offered("udp"), None);
    }

    #[test]
    fn the_longest_record_fits_into_a_note() {
        let kind = "k".repeat(LINK_KIND_MAX);
        let longest = LinkAddress {
            bytes: &[1; ADDRESS_MAX],
            kind: &kind,
        };
        let names = ["a".repeat(16), "b".repeat(16), "c".repeat(16)];
        let networks = names.each_ref().map(|name| (name.as_str(), Ok(longest)));
        let bytes = encode(&networks);
        assert!(bytes.len() <= RECORD_MAX, "{}", bytes.len());
        assert!(OfferRecord::decode(&bytes).is_ok());
    }

    #[test]
    fn long_reasons_are_cut_between_characters_and_have_one_line() {
        for text in [
            "ö".repeat(200),
            format!("{}ööö", "x".repeat(REASON_MAX - 4)),
        ] {
            let bytes = encode(&[(VERBS, Err(&text))]);
            let read = OfferRecord::decode(&bytes).unwrap().offered(VERBS);
            let reason = read.unwrap().unwrap_err();
            assert!(reason.len() <= REASON_MAX, "{reason}");
            let begin = reason.strip_suffix('…').unwrap();
            assert!(text.starts_with(begin) && begin.len() >= REASON_MAX - 5);
        }
        let bytes = encode(&[(VERBS, Err("two\nlines"))]);
        let read = OfferRecord::decode(&bytes).unwrap().offered(VERBS);
        assert_eq!(read, Some(Err("two lines")));
    }

    #[test]
    fn garbled_records_are_refused_with_what_is_wrong() {
        let good = encode(&[(VERBS, address(&[7, 8]))]);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let twice = {
            let mut bytes = good.clone();
            bytes.extend(&good[5..]);
            bytes[4] = 2;
            bytes
        };
        let longer = [good.clone(), vec![0]].concat();
        for (bytes, what) in [
            (Vec::new(), "no list of networks"),
            (with(3, 2), "another version"),
            (with(4, 4), "too many"),
            (with(5, 17), "too long"),
            (with(6, b' '), "name"),
            (with(6, 0xff), "name"),
            (with(11, 2), "neither"),
            (with(11, 0), "behind its last network"),
            (with(12, 17), "too long"),
            (with(12, 3), "not printable"),
            (with(12, 16), "ends too early"),
            (with(13, 193), "too long"),
            (with(13, 3), "ends too early"),
            (with(13, 0), "empty"),
            (with(13, 1), "behind its last network"),
            (twice, "twice"),
            (longer, "behind its last network"),
        ] {
            let why = OfferRecord::decode(&bytes).unwrap_err();
            assert!(why.contains(what), "{why}, not {what}: {bytes:?}");
        }
        for len in 0..good.len() {
            assert!(OfferRecord::decode(&good[..len]).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..80), behind in any::<bool>()) {
            let bytes = if behind { [&b"net\x01"[..], &bytes].concat() } else { bytes };
            if let Ok(record) = OfferRecord::decode(&bytes) {
                prop_assert_eq!(encode(&record.0), bytes);
            }
        }

        #[test]
        fn a_changed_byte_never_panics(at in any::<usize>(), byte in any::<u8>(), reason in "[ -~]{0,40}") {
            let mut bytes = encode(&[(VERBS, Err(reason.as_str())), ("tcp", address(&[1, 2, 3]))]);
            prop_assert!(OfferRecord::decode(&bytes).is_ok());
            let len = bytes.len();
            bytes[at % len] = byte;
            let _ = OfferRecord::decode(&bytes);
        }
    }
}
