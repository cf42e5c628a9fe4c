//! The arguments with which a test starts its own program again, as a rank that takes its role from the environment.

/// Runs only the entry point of such ranks, which is `a_rank_of_a_job` in the file of roles.
pub(crate) const AS_RANK: [&str; 4] = [
    "--exact",
    "roles::a_rank_of_a_job",
    "--nocapture",
    "--quiet",
];
