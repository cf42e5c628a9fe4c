//! Suggests the name that was probably meant by a mistyped one.

/// Returns the name that is closest to `typed`, if it is close enough.
pub(super) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let of = |name: &'a str| (distance(typed.as_bytes(), name.as_bytes()), name);
    let (distance, name) = names.map(of).min_by_key(|(distance, _)| *distance)?;
    // All names share the prefix, so it does not count.
    let length = name.len().saturating_sub("RIPSTOP_".len());
    (distance <= (length / 3).clamp(1, 3)).then_some(name)
}

/// Returns the edit distance: insertions, deletions, replacements, and swaps of adjacent letters.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut before = vec![0; other.len() + 1];
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1; other.len() + 1];
        for (j, its) in other.iter().enumerate() {
            let replaced = above[j] + usize::from(letter != its);
            row[j + 1] = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i - 1] == *its && other[j - 1] == *letter {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[other.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn letters_are_put_in_taken_out_replaced_and_swapped() {
        for (one, other, letters) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "acb", 1),
            ("abcd", "bcde", 2),
            ("fabric", "farbic", 1),
        ] {
            assert_eq!(
                distance(one.as_bytes(), other.as_bytes()),
                letters,
                "{one} {other}"
            );
            assert_eq!(
                distance(other.as_bytes(), one.as_bytes()),
                letters,
                "{other} {one}"
            );
        }
    }

    #[test]
    fn what_is_far_from_all_is_none_of_them() {
        let names = || ["RIPSTOP_BOOT", "RIPSTOP_FABRIC"].into_iter();
        assert_eq!(nearest("RIPSTOP_FOO", names()), None);
        assert_eq!(nearest("RIPSTOP_BOTO", names()), Some("RIPSTOP_BOOT"));
    }
}
