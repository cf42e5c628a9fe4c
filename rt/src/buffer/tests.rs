#![expect(unsafe_code, reason = "does what an operation does to a buffer")]

use std::{
    panic::catch_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use ripstop_fabric::memory::MemoryRegion;

use super::{BufExt, Layout, RecvBuf, RegBuf, SendBuf, Wire};

/// Receives as an operation does: writes from the start of the room, then reports how many elements it wrote.
fn land<B: RecvBuf>(buf: &mut B, values: &[B::Elem]) {
    // SAFETY: values are written.
    let room = unsafe { buf.spare() };
    for (slot, value) in room.iter_mut().zip(values) {
        slot.write(*value);
    }
    assert!(values.len() <= room.len(), "the test's message fits");
    // SAFETY: this many elements were written.
    unsafe { buf.set_filled(values.len()) };
}

fn room<B: RecvBuf>(buf: &mut B) -> usize {
    // SAFETY: nothing is written.
    unsafe { buf.spare() }.len()
}

#[test]
fn a_vector_has_room_for_its_length_and_ends_as_long_as_the_message() {
    let mut buf = Vec::with_capacity(64);
    buf.extend([0u32; 4]);
    assert_eq!(room(&mut buf), 4);
    land(&mut buf, &[7, 8]);
    assert_eq!(buf, [7, 8]);
}

#[test]
fn an_empty_vector_has_room_for_its_capacity() {
    let mut buf = Vec::<f64>::with_capacity(5);
    assert_eq!(room(&mut buf), buf.capacity());
    land(&mut buf, &[1.0, 2.0]);
    assert_eq!(buf, [1.0, 2.0]);
    buf.clear();
    assert!(room(&mut buf) >= 5);
}

#[test]
fn a_short_message_leaves_the_rest_of_an_array_and_a_boxed_slice() {
    let mut array = [9u8; 4];
    land(&mut array, &[1, 2]);
    assert_eq!(array, [1, 2, 9, 9]);
    let mut boxed: Box<[u8]> = vec![9; 3].into();
    land(&mut boxed, &[1]);
    assert_eq!(*boxed, [1, 9, 9]);
}

#[test]
fn shared_and_static_buffers_are_sent_as_they_are() {
    let shared: Arc<[i64]> = vec![1, 2].into();
    assert_eq!(shared.elems(), [1, 2]);
    assert_eq!(Bytes::from_static(b"ab").elems(), b"ab");
    static TABLE: [u16; 2] = [3, 4];
    assert_eq!(super::Static(&TABLE).elems(), [3, 4]);
    assert!(shared.registered().is_none());
}

#[test]
fn a_part_receives_into_its_range_only() {
    let mut part = vec![0u32; 6].part(2..5);
    assert_eq!(room(&mut part), 3);
    land(&mut part, &[7, 8]);
    assert_eq!(part.elems(), [7, 8, 0]);
    assert_eq!(part.into_inner(), [0, 0, 7, 8, 0, 0]);
}

#[test]
fn parts_nest() {
    let mut inner = vec![0u8, 1, 2, 3, 4].part(1..).part(..=1);
    assert_eq!(inner.elems(), [1, 2]);
    land(&mut inner, &[9]);
    assert_eq!(inner.into_inner().into_inner(), [0, 9, 2, 3, 4]);
}

#[test]
fn a_part_beyond_the_elements_is_refused_even_inside_the_capacity() {
    let refused = catch_unwind(|| Vec::<u8>::with_capacity(8).part(0..1));
    assert!(refused.is_err());
    let backwards = (std::ops::Bound::Included(2), std::ops::Bound::Excluded(1));
    assert!(catch_unwind(|| vec![0u8; 4].part(backwards)).is_err());
    assert!(catch_unwind(|| vec![0u8; 4].part(0..=usize::MAX)).is_err());
}

#[test]
fn a_column_is_packed_and_comes_home_to_its_place() {
    let matrix: Vec<u32> = (0..12).collect();
    let column = Layout {
        offset: 1,
        block: 1,
        stride: 4,
        count: 3,
    };
    let mut strided = matrix.strided(column);
    assert_eq!(strided.elems(), [1, 5, 9]);
    land(&mut strided, &[10, 50, 90]);
    assert_eq!(
        strided.into_inner(),
        [0, 10, 2, 3, 4, 50, 6, 7, 8, 90, 10, 11]
    );
}

#[test]
fn a_short_message_fills_the_first_blocks() {
    let layout = Layout {
        offset: 0,
        block: 2,
        stride: 3,
        count: 2,
    };
    let mut strided = [0u8, 1, 2, 3, 4, 5].strided(layout);
    assert_eq!(strided.elems(), [0, 1, 3, 4]);
    land(&mut strided, &[9, 9, 9]);
    let (array, scratch) = strided.into_parts();
    assert_eq!(array, [9, 9, 2, 9, 4, 5]);
    let again = array.strided_in(layout, scratch);
    assert_eq!(again.elems(), [9, 9, 9, 4]);
}

#[test]
fn a_part_of_a_strided_buffer_comes_home_too_and_so_does_what_came_before() {
    let layout = Layout {
        offset: 0,
        block: 1,
        stride: 2,
        count: 3,
    };
    let mut part = [0u8; 6].strided(layout).part(1..3);
    land(&mut part, &[5, 6]);
    assert_eq!(part.into_inner().into_inner(), [0, 0, 5, 0, 6, 0]);
    let mut strided = [0u8; 6].strided(layout);
    land(&mut strided, &[1, 2, 3]);
    land(&mut strided, &[4]);
    assert_eq!(strided.into_inner(), [4, 0, 2, 0, 3, 0]);
}

#[test]
fn a_send_leaves_a_strided_buffer_as_it_was() {
    let shared: Arc<[u8]> = vec![1, 2, 3].into();
    let strided = shared.strided(Layout {
        offset: 0,
        block: 1,
        stride: 2,
        count: 2,
    });
    assert_eq!(strided.elems(), [1, 3]);
    assert_eq!(*strided.into_inner(), [1, 2, 3]);
}

#[test]
fn layouts_that_leave_the_buffer_overlap_or_overflow_are_refused() {
    let refused = [
        Layout {
            offset: 0,
            block: 1,
            stride: 3,
            count: 3,
        },
        Layout {
            offset: 7,
            block: 1,
            stride: 1,
            count: 1,
        },
        Layout {
            offset: 0,
            block: 2,
            stride: 1,
            count: 2,
        },
        Layout {
            offset: 0,
            block: 1,
            stride: usize::MAX,
            count: 3,
        },
        Layout {
            offset: usize::MAX,
            block: 1,
            stride: 1,
            count: 1,
        },
    ];
    for layout in refused {
        assert!(
            catch_unwind(|| vec![0u8; 6].strided(layout)).is_err(),
            "{layout:?}"
        );
    }
    let nothing = Layout {
        offset: 9,
        block: 0,
        stride: 0,
        count: usize::MAX,
    };
    assert_eq!(vec![0u8; 6].strided(nothing).elems(), []);
}

#[test]
fn unpack_is_the_reverse_of_pack() {
    let layout = Layout {
        offset: 1,
        block: 2,
        stride: 4,
        count: 2,
    };
    let (from, mut packed, mut into) = ([0u8, 1, 2, 3, 4, 5, 6, 7], Vec::new(), [0u8; 8]);
    layout.pack(&from, &mut packed);
    layout.unpack(&packed, &mut into);
    assert_eq!(into, [0, 1, 2, 0, 0, 5, 6, 0]);
}

fn registered<T: Wire>(len: usize) -> RegBuf<T> {
    let region =
        MemoryRegion::create("test", len * size_of::<T>(), false).expect("memory for a test");
    // SAFETY: no other code has the region.
    unsafe { RegBuf::over(region, len) }
}

#[test]
#[cfg_attr(miri, ignore = "needs a memfd")]
fn parts_of_a_registered_buffer_are_disjoint_and_join_again() {
    let mut parts = registered::<u32>(10).split_into(&[3, 0, 7]);
    parts[0].fill(1);
    parts[2].fill(2);
    let [a, b, c] = <[RegBuf<u32>; 3]>::try_from(parts).expect("three parts");
    let (c, a) = c.join(a).expect_err("not adjacent that way round");
    let whole = a.join(b).and_then(|ab| ab.join(c)).expect("adjacent");
    assert_eq!(*whole, [1, 1, 1, 2, 2, 2, 2, 2, 2, 2]);
    assert!(catch_unwind(|| registered::<u8>(4).split_into(&[1, 2])).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "needs a memfd")]
fn buffers_of_different_regions_do_not_join() {
    let (left, right) = (registered::<u8>(4096), registered::<u8>(4096));
    assert!(left.join(right).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "needs a memfd")]
fn a_part_of_a_registered_buffer_is_found_in_its_region() {
    let part = registered::<u64>(16).part(4..8);
    let start = std::ptr::NonNull::from(part.elems()).cast();
    let memory = part.registered().expect("registered");
    // SAFETY: only the offset is used.
    assert_eq!(unsafe { memory.locate(start, 32) }.expect("inside").1, 32);
    let elsewhere = [0u8; 8];
    // SAFETY: as above.
    assert!(unsafe { memory.locate(std::ptr::NonNull::from(&elsewhere).cast(), 8) }.is_none());
}

#[test]
#[cfg_attr(miri, ignore = "needs a memfd")]
fn a_region_is_given_back_when_the_last_part_is_gone() {
    let returned = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&returned);
    let region = MemoryRegion::create("test", 64, false).expect("memory for a test");
    let give_back = move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    // SAFETY: no other code has the region.
    let buf = unsafe { RegBuf::<u8>::over_returning(region, 64, give_back) };
    let (left, right) = buf.split_at(32);
    drop(left);
    assert_eq!(returned.load(Ordering::Relaxed), 0);
    drop(right);
    assert_eq!(returned.load(Ordering::Relaxed), 1);
}

#[test]
fn buffers_can_be_handed_to_another_thread() {
    fn crosses<T: Send + Sync>() {}
    crosses::<RegBuf<f64>>();
    crosses::<super::Strided<Vec<f64>>>();
    crosses::<super::Part<RegBuf<f64>>>();
}
