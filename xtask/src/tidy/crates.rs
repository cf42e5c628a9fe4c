//! Checks the number of crates behind a plain `cargo build` of the facade.

use std::{collections::BTreeSet, path::Path, process::Command};

use super::TidyFindings;

/// The most crates, promised to users: their build stays small enough to review.
const CRATES_MAX: usize = 35;

pub(super) fn check(root: &Path) -> Result<TidyFindings, String> {
    let words = [
        "tree",
        "-p",
        "ripstop",
        "-e",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ];
    let output = Command::new("cargo")
        .args(words)
        .current_dir(root)
        .output()
        .map_err(|why| format!("cargo tree: {why}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo tree: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(count(&String::from_utf8_lossy(&output.stdout))
        .into_iter()
        .collect())
}

fn count(listing: &str) -> Option<String> {
    let crates: BTreeSet<&str> = listing
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect();
    (crates.len() > CRATES_MAX).then(|| {
        format!(
            "Cargo.lock: the facade builds {} crates, at most {CRATES_MAX}",
            crates.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{CRATES_MAX, count};

    #[test]
    fn a_crate_counts_once_and_too_many_are_a_finding() {
        assert_eq!(count(&"a v1.0.0\na v1.0.0 (*)\n".repeat(CRATES_MAX)), None);
        let many: String = (0..=CRATES_MAX).map(|n| format!("c{n} v1.0.0\n")).collect();
        assert!(count(&many).is_some());
    }
}
