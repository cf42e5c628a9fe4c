//! Values on the command line.

use std::iter;

use crate::perf::options::bytes_up_to;

/// Numbers of ranks, one run after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankSweep(pub(super) Vec<u32>);

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SettingAssignment {
    pub(super) name: String,
    pub(super) value: String,
}

/// Parses `64`, or `2..16384`: 2, 4, 8 and so on, and the last.
pub(super) fn sweep(text: &str) -> Result<RankSweep, String> {
    let number = |text: &str| {
        let number: Option<u32> = text.parse().ok();
        number
            .filter(|&ranks| ranks > 0)
            .ok_or_else(|| "expected a number of ranks from 1 on, or two as in 2..16384".to_owned())
    };
    let Some((first, last)) = text.split_once("..") else {
        return number(text).map(|ranks| RankSweep(vec![ranks]));
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{first} is more than {last}"));
    }
    let doubled = iter::successors(Some(first), |ranks| ranks.checked_mul(2));
    let mut ranks: Vec<u32> = doubled.take_while(|&ranks| ranks < last).collect();
    ranks.push(last);
    Ok(RankSweep(ranks))
}

/// Parses `NAME=VALUE`.
pub(super) fn assignment(text: &str) -> Result<SettingAssignment, String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| "expected NAME=VALUE, such as RIPSTOP_EAGER_MAX=4096".to_owned())?;
    Ok(SettingAssignment {
        name: name.to_owned(),
        value: value.to_owned(),
    })
}

/// Parses a length in bytes, with a high limit: data that is never copied may be long.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    bytes_up_to(1 << 40, text)
}

/// Parses the edge of a box in cells. A difference needs at least four, and times must stay finite.
pub(super) fn edge(text: &str) -> Result<usize, String> {
    let edge: Option<usize> = text.parse().ok();
    edge.filter(|edge| (4..=4096).contains(edge))
        .ok_or_else(|| "expected a number from 4 to 4096".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{RankSweep, sweep};

    #[test]
    fn a_sweep_doubles_and_ends_with_its_last_number() {
        assert_eq!(sweep("64"), Ok(RankSweep(vec![64])));
        assert_eq!(sweep("2..16"), Ok(RankSweep(vec![2, 4, 8, 16])));
        assert_eq!(sweep("3..20"), Ok(RankSweep(vec![3, 6, 12, 20])));
        assert_eq!(sweep("5..5"), Ok(RankSweep(vec![5])));
        for text in ["", "0", "x", "0..4", "8..2", "2..", "-1"] {
            assert!(sweep(text).is_err(), "{text}");
        }
    }
}
