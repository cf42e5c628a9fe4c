//! Numbers as people read them.

/// Formats a number of bytes with at most one decimal: `64 KiB`, `8 MiB`, `1.5 GiB`.
pub(crate) fn binary_size(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, unit)| bytes >= *unit);
    let Some((name, unit)) = unit else {
        return format!("{bytes} B");
    };
    let (whole, tenth) = (bytes / unit, bytes % unit * 10 / unit);
    match tenth {
        0 => format!("{whole} {name}"),
        _ => format!("{whole}.{tenth} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::binary_size;

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (65_536, "64 KiB"),
            (8 << 20, "8 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "17179869183.9 GiB"),
        ] {
            assert_eq!(binary_size(bytes), text);
        }
    }
}
