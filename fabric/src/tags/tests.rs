use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

use super::{MatchTag, TagEnvelope, TagLayout, TagPattern, TagSelector};

const LAYOUTS: [TagLayout; 2] = [TagLayout::Wide, TagLayout::Narrow];

/// Draws from few numbers, so that messages and receives often match, and includes all limits of both layouts.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        0_u32..4,
        prop_oneof![Just(8), Just(16), Just(20), Just(24)].prop_map(|len| (1 << len) - 1),
        prop_oneof![Just(8), Just(16), Just(20), Just(24)].prop_map(|len| 1 << len),
        Just(u32::MAX),
        any::<u32>(),
    ]
}

fn envelope() -> impl Strategy<Value = TagEnvelope> {
    let numbers = (number(), number(), number());
    (0_u8..16, numbers).prop_map(|(kind, (source, context, tag))| TagEnvelope {
        kind,
        source,
        tag: MatchTag { context, tag },
    })
}

/// Returns a receive whose fields match this message or another one.
fn want(
    same: TagEnvelope,
    other: TagEnvelope,
    [kind, context, source, tag]: [bool; 4],
) -> TagSelector {
    let of = |is_same| if is_same { same } else { other };
    TagSelector {
        kind: of(kind).kind,
        context: of(context).tag.context,
        source: Some(of(source).source),
        tag: Some(of(tag).tag.tag),
    }
}

/// Returns true if a receive matches a message, as matching in software decides it.
fn fits(want: TagSelector, envelope: TagEnvelope) -> bool {
    want.kind == envelope.kind
        && want.context == envelope.tag.context
        && want.source.is_none_or(|source| source == envelope.source)
        && want.tag.is_none_or(|tag| tag == envelope.tag.tag)
}

proptest! {
    #[test]
    fn what_fits_comes_back_as_it_was(envelope in envelope()) {
        for layout in LAYOUTS {
            if let Some(bits) = layout.bits(envelope) {
                assert_eq!(layout.envelope(bits), envelope, "{layout:?}");
            }
        }
    }

    #[test]
    fn all_bits_are_of_a_message(bits: u64) {
        for layout in LAYOUTS {
            assert_eq!(layout.bits(layout.envelope(bits)), Some(bits), "{layout:?}");
        }
    }

    #[test]
    fn an_adapter_matches_as_software_does(
        sent in envelope(),
        other in envelope(),
        same: [bool; 4],
        any_source: bool,
        any_tag: bool,
    ) {
        let mut want = want(sent, other, same);
        if any_source {
            want.source = None;
        }
        if any_tag {
            want.tag = None;
        }
        for layout in LAYOUTS {
            let (Some(bits), Some(pattern)) = (layout.bits(sent), layout.pattern(want)) else {
                continue; // software matches them
            };
            assert_eq!(pattern.matches(bits), fits(want, sent), "{layout:?}, {want:?}");
        }
    }
}

#[test]
fn what_does_not_fit_has_no_bits() {
    let with = |kind, context, source, tag| TagEnvelope {
        kind,
        source,
        tag: MatchTag { context, tag },
    };
    for (layout, last, beyond) in [
        (
            TagLayout::Wide,
            with(15, 0xf_ffff, 0xff, u32::MAX),
            vec![
                with(16, 0, 0, 0),
                with(0, 0x10_0000, 0, 0),
                with(0, 0, 0x100, 0),
            ],
        ),
        (
            TagLayout::Narrow,
            with(15, 0xffff, 0xf_ffff, 0xff_ffff),
            vec![
                with(16, 0, 0, 0),
                with(0, 0x1_0000, 0, 0),
                with(0, 0, 0x10_0000, 0),
                with(0, 0, 0, 0x100_0000),
            ],
        ),
    ] {
        assert_eq!(layout.bits(last), Some(u64::MAX), "{layout:?}");
        for envelope in beyond {
            assert_eq!(layout.bits(envelope), None, "{layout:?}, {envelope:?}");
        }
    }
}

#[test]
fn wildcards_ignore_what_the_table_of_the_specification_says() {
    let want = |source, tag| TagSelector {
        kind: 0,
        context: 0,
        source,
        tag,
    };
    let exact = want(Some(0), Some(0));
    for (layout, any_tag, any_source) in [
        (
            TagLayout::Wide,
            0x0000_0000_ffff_ffff,
            0x0000_00ff_0000_0000,
        ),
        (
            TagLayout::Narrow,
            0x0000_0000_00ff_ffff,
            0x0000_0fff_ff00_0000,
        ),
    ] {
        let ignored = |want| {
            let TagPattern { ignored, .. } = layout.pattern(want).expect("it fits");
            ignored
        };
        assert_eq!(ignored(exact), 0);
        assert_eq!(ignored(want(Some(0), None)), any_tag);
        assert_eq!(ignored(want(None, Some(0))), any_source);
        assert_eq!(ignored(want(None, None)), any_tag | any_source);
    }
}
