//! Misuse does not compile, and the compiler says what to do.

#[test]
fn misuse_is_refused_with_advice() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
