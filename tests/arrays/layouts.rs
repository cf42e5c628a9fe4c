//! Layouts of parts of arrays.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use ripstop::buffer::{BufExt, Layout, NestedLayout};

use crate::content::{Random, content, seed};

#[test]
fn subarrays_are_packed_and_unpacked_like_a_loop_over_indices() {
    let seed = seed("subarrays_are_packed_and_unpacked_like_a_loop_over_indices");
    let mut random = Random::new(seed);
    for case in 0..2000 {
        let dims = random.below(5);
        let shape: Vec<_> = (0..dims).map(|_| random.below(7)).collect();
        let ranges: Vec<_> = shape
            .iter()
            .map(|&len| {
                let start = random.below(len + 1);
                start..start + random.below(len - start + 1)
            })
            .collect();
        let layout = Layout::subarray(&shape, &ranges);
        compare(
            &layout,
            &indices(&shape, &ranges),
            shape.iter().product(),
            &mut random,
            &format!("case {case}, {ranges:?} of {shape:?}"),
        );
    }
}

#[test]
fn repeated_layouts_are_packed_like_a_loop_or_refused_where_elements_would_come_twice() {
    let seed = seed("repeated_layouts_are_packed_like_a_loop");
    let mut random = Random::new(seed);
    let (mut packed, mut refused) = (0, 0);
    for case in 0..2000 {
        let [offset, block, count] = [4, 4, 4].map(|n| random.below(n));
        let stride = block + random.below(4);
        let first = Layout {
            offset,
            block,
            stride,
            count,
        };
        let mut layout = NestedLayout::from(first);
        let mut at: Vec<_> = (0..count)
            .flat_map(|nth| (0..block).map(move |elem| offset + nth * stride + elem))
            .collect();
        for _ in 0..random.below(3) {
            let (stride, count) = (random.below(20), random.below(4));
            layout = layout.repeated(stride, count);
            at = (0..count)
                .flat_map(|nth| at.iter().map(move |at| at + nth * stride))
                .collect();
        }
        let len = at.iter().max().map_or(0, |last| last + 1);
        let mut sorted = at.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let array = vec![0_u8; len];
        let accepted = catch_unwind(|| layout.pack(&array, &mut Vec::new())).is_ok();
        if sorted.len() < at.len() {
            assert!(!accepted, "{layout:?} has elements twice");
        }
        if accepted {
            packed += 1;
            compare(&layout, &at, len, &mut random, &format!("case {case}"));
        } else {
            refused += 1;
        }
    }
    assert!(
        packed > 500 && refused > 50,
        "{packed} packed, {refused} refused"
    );
}

/// Compares all ways of packing and unpacking with the indices `at` of an array of `len` elements.
fn compare(layout: &NestedLayout, at: &[usize], len: usize, random: &mut Random, case: &str) {
    let array = content(random.next(), len);
    let expected: Vec<_> = at.iter().map(|&at| array[at]).collect();
    assert_eq!(layout.len(), at.len(), "{case}: {layout:?}");
    assert_eq!(layout.is_empty(), at.is_empty(), "{case}: {layout:?}");
    let ranges = layout.ranges().into_iter().flatten();
    assert!(ranges.eq(at.iter().copied()), "{case}: {layout:?}");
    let mut packed = vec![7];
    layout.pack(&array, &mut packed);
    assert_eq!(packed[1..], expected, "{case}: {layout:?}");
    let mut slice = vec![0; at.len()];
    layout.pack_into(&array, &mut slice);
    assert_eq!(slice, expected, "{case}: {layout:?}");

    let short = random.below(at.len() + 1);
    let mut unpacked = vec![0; len];
    layout.unpack(&expected[..short], &mut unpacked);
    let mut by_hand = vec![0; len];
    for &at in &at[..short] {
        by_hand[at] = array[at];
    }
    assert_eq!(unpacked, by_hand, "{case}: {short} elements of {layout:?}");
    let inner = array.clone().strided(layout).into_inner();
    assert_eq!(inner, array, "{case}: {layout:?}");

    if let Some(end) = at.iter().max() {
        let shorter = &array[..*end];
        let refused = catch_unwind(|| layout.pack(shorter, &mut Vec::new()));
        assert!(refused.is_err(), "{case}: {layout:?} of {end} elements");
    }
}

/// Returns the indices of the elements of a part of a row-major array, in order.
fn indices(shape: &[usize], ranges: &[Range<usize>]) -> Vec<usize> {
    shape
        .iter()
        .zip(ranges)
        .fold(vec![0], |outer, (&len, range)| {
            outer
                .iter()
                .flat_map(|at| range.clone().map(move |inner| at * len + inner))
                .collect()
        })
}

#[test]
fn contiguous_parts_are_one_block() {
    let plane = Layout::subarray(&[4, 5, 6], &[1..3, 0..5, 0..6]);
    let flat = Layout {
        offset: 30,
        block: 60,
        stride: 60,
        count: 1,
    };
    assert_eq!(plane, flat.into());
    assert_eq!(Layout::subarray(&[4, 5, 6], &[0..4, 2..3, 0..6]), {
        Layout {
            offset: 12,
            block: 6,
            stride: 30,
            count: 4,
        }
        .into()
    });
    // A column through all planes has one stride.
    assert_eq!(Layout::subarray(&[4, 5, 6], &[0..4, 0..5, 3..4]), {
        Layout {
            offset: 3,
            block: 1,
            stride: 6,
            count: 20,
        }
        .into()
    });
}

#[test]
fn a_layout_that_does_not_fit_is_refused_by_name() {
    let says = |call: &dyn Fn()| {
        let refused = catch_unwind(AssertUnwindSafe(call)).expect_err("it panics");
        refused
            .downcast::<String>()
            .map(|text| *text)
            .unwrap_or_default()
    };
    let text = says(&|| drop(Layout::subarray(&[3, 4], &[0..3, 2..5])));
    assert!(
        text.contains("`ranges` has 2..5 in dimension 1") && text.contains("0..4"),
        "{text}"
    );
    let text = says(&|| drop(Layout::subarray(&[3, 4], std::slice::from_ref(&(0..3)))));
    assert!(text.contains("`ranges` needs one range"), "{text}");
    let text = says(&|| drop(Layout::subarray(&[usize::MAX, 2], &[0..1, 0..1])));
    assert!(text.contains("`shape`"), "{text}");
    let face = Layout::subarray(&[3, 4], &[0..3, 3..4]);
    let text = says(&|| face.pack(&[0; 11], &mut Vec::new()));
    assert!(text.contains("leaves `from` of 11 elements"), "{text}");
    let text = says(&|| face.unpack(&[0; 3], &mut [0; 11]));
    assert!(text.contains("leaves `into` of 11 elements"), "{text}");
    let text = says(&|| face.pack_into(&[0; 12], &mut [0; 4]));
    assert!(text.contains("`packed` must be as long"), "{text}");
    let endless = face.repeated(usize::MAX, usize::MAX);
    assert_eq!((endless.len(), endless.end()), (usize::MAX, usize::MAX));
    assert!(says(&|| drop(endless.ranges())).contains("leaves every array"));
    assert!(!says(&|| endless.pack(&[0; 12], &mut Vec::new())).is_empty());
}
