//! Comparing content.

use crate::content::content;

/// Panics at the first byte that differs, not with megabytes of output.
#[track_caller]
pub(crate) fn assert_content(got: &[u8], key: u64, len: usize) {
    assert_eq!(got.len(), len, "length of message {key}");
    let expected = content(key, len);
    if got != expected {
        let wrong = got.iter().zip(&expected).position(|(a, b)| a != b);
        panic!("message {key} of {len} bytes is wrong from byte {wrong:?} on");
    }
}
