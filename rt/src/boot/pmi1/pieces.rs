//! Splits values that are longer than a server accepts. The first piece begins with the length of the whole value; the
//! others have numbered keys.

use crate::boot::{BootError, VALUE_MAX};

/// Returns the keys and values to put, each value at most `room` bytes long.
pub(super) fn split(
    key: &str,
    value: &str,
    room: usize,
) -> Result<Vec<(String, String)>, BootError> {
    let whole = format!("{}:{value}", value.len());
    let pieces = whole.len().div_ceil(room);
    if pieces > PIECES_MAX {
        let why = format!("it needs {pieces} pieces of {room} bytes, the limit is {PIECES_MAX}");
        return Err(BootError::Value {
            key: key.to_owned(),
            why,
        });
    }
    let piece = |number: usize| {
        let end = whole.len().min((number + 1) * room);
        (name(key, number), whole[number * room..end].to_owned())
    };
    Ok((0..pieces).map(piece).collect())
}

/// Joins the pieces of a value, which `get` looks up.
pub(super) fn join(
    key: &str,
    mut get: impl FnMut(&str) -> Result<Option<String>, BootError>,
) -> Result<Option<String>, BootError> {
    let Some(first) = get(&name(key, 0))? else {
        return Ok(None);
    };
    let foreign = |why: &str| BootError::Value {
        key: key.to_owned(),
        why: why.to_owned(),
    };
    let (total, start) = first
        .split_once(':')
        .ok_or_else(|| foreign("it does not begin with its length"))?;
    let total = total
        .parse()
        .ok()
        .filter(|&total: &usize| total <= VALUE_MAX)
        .ok_or_else(|| foreign("its length is not valid"))?;
    let mut value = start.to_owned();
    for number in 1..=PIECES_MAX {
        if value.len() >= total {
            break;
        }
        let piece = get(&name(key, number))?.filter(|piece| !piece.is_empty());
        value += &piece.ok_or_else(|| foreign(&format!("its piece {number} is missing")))?;
    }
    if value.len() == total {
        Ok(Some(value))
    } else {
        Err(foreign("its pieces have another length than the whole"))
    }
}

/// Returns a name as long as that of any piece of `key`.
pub(super) fn name_max(key: &str) -> String {
    name(key, PIECES_MAX)
}

fn name(key: &str, number: usize) -> String {
    if number == 0 {
        key.to_owned()
    } else {
        format!("{key}.{number}")
    }
}

/// Maximum number of pieces: four digits in a key. Enough for the longest value in pieces of 105 bytes, and servers
/// accept about 950.
const PIECES_MAX: usize = 9999;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn read(pieces: &[(String, String)]) -> Result<Option<String>, BootError> {
        let table: BTreeMap<_, _> = pieces.iter().cloned().collect();
        join("k", |key| Ok(table.get(key).cloned()))
    }

    #[test]
    fn a_short_value_is_one_piece_under_its_own_key() {
        assert_eq!(
            split("k", "abc", 32).unwrap(),
            [("k".to_owned(), "3:abc".to_owned())]
        );
        assert_eq!(
            read(&split("k", "", 32).unwrap()).unwrap().as_deref(),
            Some("")
        );
        assert_eq!(read(&[]).unwrap(), None);
    }

    #[test]
    fn a_missing_or_foreign_piece_is_an_error() {
        let mut pieces = split("k", &"x".repeat(100), 32).unwrap();
        pieces.remove(2);
        assert!(read(&pieces).is_err());
        for foreign in ["abc", ":", "9999999999:a", "1:ab", "-1:a"] {
            assert!(
                read(&[("k".to_owned(), foreign.to_owned())]).is_err(),
                "{foreign}"
            );
        }
    }

    #[test]
    fn a_value_that_needs_too_many_pieces_is_refused() {
        assert!(split("k", &"x".repeat(400_000), 32).is_err());
    }

    proptest! {
        #[test]
        fn every_value_comes_back(value in "[!-~]{0,400}", room in 32_usize..200) {
            let pieces = split("k", &value, room).unwrap();
            prop_assert!(pieces.iter().all(|(_, piece)| piece.len() <= room));
            prop_assert_eq!(read(&pieces).unwrap(), Some(value));
        }

        #[test]
        fn any_pieces_are_joined_or_refused(first in "[0-9]{0,3}:?[!-~]{0,9}", second in "[!-~]{0,9}") {
            let _ = read(&[("k".to_owned(), first), ("k.1".to_owned(), second)]);
        }
    }
}
