//! Frames come back as they were sent, in any pieces, and any other bytes are refused.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

use super::*;

fn streams() -> impl Strategy<Value = StdStream> {
    prop_oneof![Just(StdStream::Out), Just(StdStream::Err)]
}

fn pairs() -> impl Strategy<Value = PmiPairs> {
    let word = || any::<String>().prop_map(|text| text.replace([' ', '\n'], "_"));
    vec((word(), word()), 0..4)
}

fn launcher_frames() -> impl Strategy<Value = LauncherFrame> {
    prop_oneof![
        Just(LauncherFrame::Beat),
        vec(any::<u8>(), 0..40).prop_map(LauncherFrame::Setup),
        Just(LauncherFrame::Check),
        Just(LauncherFrame::Start),
        any::<u32>().prop_map(LauncherFrame::Signal),
        vec(any::<u8>(), 0..40).prop_map(LauncherFrame::Input),
        Just(LauncherFrame::InputEnd),
        (any::<u32>(), streams(), any::<u32>())
            .prop_map(|(rank, which, bytes)| LauncherFrame::Credit { rank, which, bytes }),
        pairs().prop_map(LauncherFrame::Pairs),
        Just(LauncherFrame::Release),
        Just(LauncherFrame::Finish),
        any::<u32>().prop_map(LauncherFrame::Look),
    ]
}

fn helper_frames() -> impl Strategy<Value = HelperFrame> {
    let number = any::<u32>;
    let text = any::<String>;
    prop_oneof![
        Just(HelperFrame::Beat),
        (text(), text()).prop_map(|(version, identity)| HelperFrame::Hello { version, identity }),
        Just(HelperFrame::Ready),
        (any::<u8>(), text()).prop_map(|(code, why)| HelperFrame::Refused { code, why }),
        (number(), number()).prop_map(|(rank, pid)| HelperFrame::Started { rank, pid }),
        (number(), streams(), vec(any::<u8>(), 0..40))
            .prop_map(|(rank, which, bytes)| HelperFrame::Output { rank, which, bytes }),
        (number(), number()).prop_map(|(rank, status)| HelperFrame::Ended { rank, status }),
        (number(), vec(any::<u8>(), 0..40))
            .prop_map(|(rank, line)| HelperFrame::Line { rank, line }),
        (number(), text()).prop_map(|(rank, why)| HelperFrame::Garbled { rank, why }),
        (number(), text()).prop_map(|(rank, how)| HelperFrame::Left { rank, how }),
        pairs().prop_map(HelperFrame::Pairs),
        vec(number(), 0..9).prop_map(HelperFrame::Fence),
        number().prop_map(HelperFrame::InputCredit),
        Just(HelperFrame::InputShut),
        Just(HelperFrame::Bye),
        (number(), any::<bool>(), vec(any::<u8>(), 0..40)).prop_map(|(number, is_last, bytes)| {
            HelperFrame::Observed {
                number,
                is_last,
                bytes,
            }
        }),
    ]
}

/// Reads all frames of `bytes`, which arrive in pieces of `step` bytes.
fn read<F: NodeFrame>(bytes: &[u8], step: usize) -> Result<Vec<F>, String> {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(step) {
        reader.push(piece);
        while let Some(frame) = reader.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn come_back<F: NodeFrame + PartialEq + Debug>(frames: Vec<F>, step: usize) {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| encode(frame, &mut bytes));
    assert_eq!(read(&bytes, step), Ok(frames));
}

/// Reading ends, and what it accepts is encoded as the very bytes that were read.
fn survive<F: NodeFrame + PartialEq + Debug>(bytes: &[u8], step: usize) {
    let Ok(frames) = read::<F>(bytes, step) else {
        return;
    };
    let mut again = Vec::new();
    frames.iter().for_each(|frame| encode(frame, &mut again));
    assert_eq!(again, bytes[..again.len()]);
    assert!(bytes.len() - again.len() < HEADER_LEN + PAYLOAD_MAX);
}

#[test]
fn a_length_above_the_limit_is_refused_before_its_bytes_arrive() {
    let frame = |kind: u8, length: u32| [&[kind][..], &length.to_le_bytes()].concat();
    let longest = u32::try_from(PAYLOAD_MAX).unwrap();
    assert_eq!(read::<LauncherFrame>(&frame(5, longest), 9), Ok(vec![]));
    for length in [longest + 1, u32::MAX] {
        assert!(read::<LauncherFrame>(&frame(5, length), 9).is_err());
        assert!(read::<HelperFrame>(&frame(5, length), 9).is_err());
    }
}

#[test]
fn frames_that_are_too_short_too_long_or_of_no_kind_are_refused() {
    for bytes in [
        &[255, 0, 0, 0, 0][..],
        &[2, 1, 0, 0, 0, 7],                         // Check, with a byte.
        &[4, 3, 0, 0, 0, 1, 2, 3],                   // Signal, with three bytes of four.
        &[7, 9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0], // Credit for a third stream.
        &[8, 5, 0, 0, 0, 255, 255, 255, 255, 1],     // Pairs, with a text that is not there.
    ] {
        assert!(read::<LauncherFrame>(bytes, 99).is_err(), "{bytes:?}");
    }
    assert!(read::<HelperFrame>(&[11, 3, 0, 0, 0, 1, 2, 3], 99).is_err());
    assert!(read::<HelperFrame>(&[3, 6, 0, 0, 0, 1, 1, 0, 0, 0, 255], 99).is_err());
}

#[test]
fn pairs_that_are_no_words_of_pmi_are_refused() {
    for (name, value, is_taken) in [
        ("key", "a=b", true),
        ("", "", true),
        ("key", "a rc=0", false),
        ("key x=y", "a", false),
        ("key", "a\ncmd=barrier_out", false),
    ] {
        let pairs = vec![(name.to_owned(), value.to_owned())];
        let (mut up, mut down) = (Vec::new(), Vec::new());
        encode(&HelperFrame::Pairs(pairs.clone()), &mut up);
        encode(&LauncherFrame::Pairs(pairs), &mut down);
        assert_eq!(
            read::<HelperFrame>(&up, 99).is_ok(),
            is_taken,
            "{name}, {value}"
        );
        assert_eq!(
            read::<LauncherFrame>(&down, 99).is_ok(),
            is_taken,
            "{name}, {value}"
        );
        assert_eq!(up.len() - HEADER_LEN, pair_length(name, value));
    }
}

#[test]
fn pairs_are_split_where_a_frame_would_be_too_long() {
    let value = "x".repeat(1000);
    let pairs: PmiPairs = (0..1000)
        .map(|nth| (format!("key-{nth}"), value.clone()))
        .collect();
    let frames: Vec<_> = pieces(pairs.clone())
        .into_iter()
        .map(HelperFrame::Pairs)
        .collect();
    assert!(frames.len() > 1);
    come_back(frames, 4096);
    assert_eq!(pieces(pairs.clone()).concat(), pairs);
    assert!(pieces(PmiPairs::new()).is_empty());
}

proptest! {
    #[test]
    fn frames_come_back_in_any_pieces(
        down in vec(launcher_frames(), 0..9),
        up in vec(helper_frames(), 0..9),
        step in 1_usize..50,
    ) {
        come_back(down, step);
        come_back(up, step);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200), step in 1_usize..50) {
        survive::<LauncherFrame>(&bytes, step);
        survive::<HelperFrame>(&bytes, step);
    }

    #[test]
    fn frames_with_a_changed_byte_are_read_or_refused(
        down in vec(launcher_frames(), 1..9),
        up in vec(helper_frames(), 1..9),
        at in any::<usize>(),
        to in any::<u8>(),
    ) {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        down.iter().for_each(|frame| encode(frame, &mut first));
        up.iter().for_each(|frame| encode(frame, &mut second));
        for bytes in [&mut first, &mut second] {
            let length = bytes.len();
            bytes[at % length] = to;
        }
        survive::<LauncherFrame>(&first, 17);
        survive::<HelperFrame>(&second, 17);
    }
}
