//! Numbers from the environment, for slow machines or longer runs.

/// Returns the variable's number, or `otherwise`.
pub(crate) fn given(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name);
    let number = text.map(|text| text.parse());
    number.map_or(otherwise, |number| {
        number.unwrap_or_else(|why| panic!("{name}: {why}"))
    })
}
