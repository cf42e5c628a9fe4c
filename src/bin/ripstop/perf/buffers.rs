//! Buffers like those of `benches/compare`: page aligned and touched.

use std::sync::Arc;

use ripstop::buffer::{BufExt, Part};

/// Returns `size` bytes to receive into or to send from. They are touched, so that no page is allocated during a measurement.
pub(super) fn aligned(size: usize) -> Part<Vec<u8>> {
    let whole = vec![1; size + PAGE];
    let start = start(&whole);
    whole.part(start..start + size)
}

/// Like [`aligned`], for a buffer that is sent several times at once.
pub(super) fn shared(size: usize) -> Part<Arc<[u8]>> {
    let whole: Arc<[u8]> = vec![1; size + PAGE].into();
    let start = start(&whole);
    whole.part(start..start + size)
}

fn start(whole: &[u8]) -> usize {
    whole.as_ptr().addr().wrapping_neg() % PAGE
}

pub(super) const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use ripstop::buffer::SendBuf;

    #[test]
    fn buffers_are_page_aligned_and_as_long_as_asked() {
        for size in [1, 8, 4096, 5000] {
            let (one, other) = (super::aligned(size), super::shared(size));
            for elems in [one.elems(), other.elems()] {
                assert_eq!(
                    (elems.as_ptr().addr() % super::PAGE, elems.len()),
                    (0, size)
                );
            }
        }
    }
}
