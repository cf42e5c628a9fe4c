//! Expands ranges in host names, as Slurm writes them: `n[0-3,7]`, `rack[1-2]n[001-128]`, `n[0-1]-ib`.

use super::HOSTS_MAX;

/// Splits at commas that are not within brackets. The error says which bracket does not match.
pub(super) fn split(list: &str) -> Result<Vec<&str>, String> {
    let (mut items, mut first, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' if inside => return Err(format!("{list:?} has a [ within [ ]")),
            ']' if !inside => return Err(format!("{list:?} has a ] without a [")),
            '[' | ']' => inside = !inside,
            ',' if !inside => {
                items.push(&list[first..at]);
                first = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("{list:?} has a [ that is not closed"));
    }
    items.push(&list[first..]);
    Ok(items)
}

/// Returns the names that `pattern` stands for: itself, if it has no ranges.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inner, behind) = behind
            .split_once(']')
            .ok_or_else(|| format!("{pattern:?} has a [ that is not closed"))?;
        let room = HOSTS_MAX / names.len();
        let numbers = numbers(inner, room).map_err(|why| format!("{pattern:?}: {why}"))?;
        names = names
            .iter()
            .flat_map(|name| {
                let named = move |number: &String| format!("{name}{before}{number}");
                numbers.iter().map(named)
            })
            .collect();
        rest = behind;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Returns the numbers of `0-3,7`, as text, because zeros in front belong to names. There are at most `most`.
fn numbers(inner: &str, most: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for part in inner.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (number(first)?, number(last)?);
        if low > high {
            return Err(format!("the range {part:?} runs backwards"));
        }
        if (high - low) as usize >= most - numbers.len() {
            return Err(format!("more than {HOSTS_MAX} hosts"));
        }
        let width = if first.starts_with('0') {
            first.len()
        } else {
            0
        };
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

/// Returns the number that at most nine digits say.
pub(super) fn number(text: &str) -> Result<u32, String> {
    let digits = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| {
        format!("{text:?} is no number of a range: write [0-3], [0-3,7] or [001-128]")
    })
}

const DIGITS_MAX: usize = 9;

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn ranges_become_names_with_their_zeros() {
        let names = |pattern| expand(pattern).unwrap().join(" ");
        assert_eq!(names("login1"), "login1");
        assert_eq!(names("n[0-2,7]"), "n0 n1 n2 n7");
        assert_eq!(names("n[008-011]"), "n008 n009 n010 n011");
        assert_eq!(names("n[0-1]-ib"), "n0-ib n1-ib");
        assert_eq!(names("r[1-2]n[0-1]"), "r1n0 r1n1 r2n0 r2n1");
        assert_eq!(expand("n[0-1023]").unwrap().len(), 1024);
    }

    #[test]
    fn bad_ranges_are_refused() {
        for (pattern, why) in [
            ("n[3-0]", "backwards"),
            ("n[0-99999999]", "more than 1024 hosts"),
            ("n[0-1024]", "more than 1024 hosts"),
            ("r[0-99]n[0-99]", "more than 1024 hosts"),
            ("n[0-3", "not closed"),
            ("n[]", "is no number"),
            ("n[a-b]", "is no number"),
            ("n[1-2-3]", "is no number"),
            ("n[-1]", "is no number"),
            ("n[4294967296]", "is no number"),
            ("n[1,]", "is no number"),
        ] {
            let refused = expand(pattern).unwrap_err();
            assert!(refused.contains(why), "{pattern}: {refused}");
        }
    }

    #[test]
    fn commas_within_brackets_do_not_separate() {
        assert_eq!(split("a,n[0-3,7]:4,b").unwrap(), ["a", "n[0-3,7]:4", "b"]);
        assert_eq!(split("").unwrap(), [""]);
        for list in ["n[0", "n0]", "n[[0]]"] {
            assert!(split(list).is_err(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_refused(text in "[n\\[\\]0-9,-]{0,24}") {
            if let Ok(names) = expand(&text) {
                prop_assert!((1..=HOSTS_MAX).contains(&names.len()));
            }
            if let Ok(items) = split(&text) {
                prop_assert_eq!(items.join(","), text);
            }
        }
    }
}
