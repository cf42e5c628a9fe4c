//! How many cases a long test goes through.

/// All of them; where computing takes long, `CASES` says how many, at least one.
pub(crate) fn cases() -> usize {
    let given = std::env::var("CASES").ok();
    let cases = given.map_or(usize::MAX, |cases| {
        cases.parse().expect("CASES is a number")
    });
    assert!(cases > 0, "CASES=0 tests nothing");
    cases
}
