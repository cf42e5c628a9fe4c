use proptest::prelude::*;

use super::{
    AcceptHandshake, DialHandshake, GiveUpReason, HandshakeOutcome, HandshakeRefusal,
    HandshakeStep, HelloVerdict, RankGoodbye, SIGNED_LEN, TcpIdentity, goodbye,
    hello::{HELLO_LEN, PROOF_LEN, VERSION},
};

const TOKEN: [u8; 16] = *b"token of rank 3.";
const DIALER: TcpIdentity = identity(8, 1);
const LISTENER: TcpIdentity = identity(3, 2);
const AGREED: [HandshakeOutcome; 2] = [
    HandshakeOutcome::Ready(LISTENER),
    HandshakeOutcome::Ready(DIALER),
];

const fn identity(rank: u32, incarnation: u32) -> TcpIdentity {
    TcpIdentity { rank, incarnation }
}

fn dial() -> (DialHandshake, [u8; SIGNED_LEN]) {
    DialHandshake::new(DIALER, LISTENER, &TOKEN, [7; 16])
}

const fn accept() -> AcceptHandshake {
    AcceptHandshake::new(LISTENER, &TOKEN, [9; 16])
}

fn refused(why: HandshakeRefusal) -> HandshakeOutcome {
    HandshakeOutcome::Refused(why)
}

/// Everything that a handshake sent, how many bytes it took, and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    sent: Vec<u8>,
    consumed: usize,
    outcome: HandshakeOutcome,
}

/// Gives a handshake all of `bytes`, in pieces of at most `piece`.
fn feed(bytes: &[u8], piece: usize, mut receive: impl FnMut(&[u8]) -> HandshakeStep) -> Told {
    let mut told = Told {
        sent: Vec::new(),
        consumed: 0,
        outcome: HandshakeOutcome::Pending,
    };
    for piece in bytes.chunks(piece) {
        let step = receive(piece);
        assert!(step.consumed <= piece.len() && step.send.len() <= SIGNED_LEN);
        if step.outcome == HandshakeOutcome::Pending {
            assert_eq!(
                step.consumed,
                piece.len(),
                "a handshake takes what it needs"
            );
        }
        told.consumed += step.consumed;
        told.sent.extend(step.send);
        told.outcome = step.outcome;
    }
    told
}

/// Lets two handshakes talk, with frames behind the last words of both, and returns how they ended.
fn talk(
    (mut dial, hello): (DialHandshake, [u8; SIGNED_LEN]),
    mut accept: AcceptHandshake,
    verdict: HelloVerdict,
    piece: usize,
) -> [HandshakeOutcome; 2] {
    let answered = feed(&hello, piece, |bytes| accept.receive(bytes, |_| verdict));
    let with_frames = [&answered.sent[..], b"frames"].concat();
    let confirmed = feed(&with_frames, piece, |bytes| dial.receive(bytes));
    assert_eq!(confirmed.consumed, answered.sent.len());
    if answered.outcome != HandshakeOutcome::Pending {
        return [confirmed.outcome, answered.outcome];
    }
    let with_frames = [&confirmed.sent[..], b"frames"].concat();
    let ended = feed(&with_frames, piece, |bytes| {
        accept.receive(bytes, |_| panic!("the rank was judged before"))
    });
    assert_eq!(ended.consumed, PROOF_LEN);
    [confirmed.outcome, ended.outcome]
}

#[test]
fn two_ranks_agree_whatever_the_pieces() {
    for piece in 1..=SIGNED_LEN + 10 {
        assert_eq!(talk(dial(), accept(), HelloVerdict::Accept, piece), AGREED);
    }
}

#[test]
fn both_sides_learn_why_a_known_rank_is_refused() {
    for piece in [1, 7, SIGNED_LEN] {
        let duplicate = refused(HandshakeRefusal::Duplicate);
        let ends = talk(dial(), accept(), HelloVerdict::Duplicate, piece);
        assert_eq!(ends, [duplicate; 2]);

        let stale = refused(HandshakeRefusal::OtherIncarnation {
            running: DIALER,
            expected: 5,
        });
        let ends = talk(dial(), accept(), HelloVerdict::OtherIncarnation(5), piece);
        assert_eq!(ends, [stale; 2]);

        let earlier = DialHandshake::new(DIALER, identity(3, 1), &TOKEN, [7; 16]);
        let stale = refused(HandshakeRefusal::OtherIncarnation {
            running: LISTENER,
            expected: 1,
        });
        let ends = talk(earlier, accept(), HelloVerdict::Accept, piece);
        assert_eq!(ends, [stale; 2]);
    }
}

#[test]
fn two_versions_tell_each_other_theirs() {
    let (_, mut hello) = dial();
    let newer = VERSION + 1;
    hello[8..10].copy_from_slice(&newer.to_le_bytes());
    let mut accept = accept();
    // The newer hello may be shorter than this version's.
    let told = feed(&hello[..10], 1, |bytes| {
        accept.receive(bytes, |_| HelloVerdict::Accept)
    });
    let mismatch = |own, peer| refused(HandshakeRefusal::OtherVersion { own, peer });
    assert_eq!(told.outcome, mismatch(VERSION, newer));
    assert_eq!(told.sent.len(), SIGNED_LEN);
    assert_eq!(told.sent[8..10], VERSION.to_le_bytes());

    let mut answer = told.sent;
    answer[8..10].copy_from_slice(&newer.to_le_bytes());
    let (mut dial, _) = dial();
    let told = feed(&answer[..10], 1, |bytes| dial.receive(bytes));
    assert_eq!(told.outcome, mismatch(VERSION, newer));
    let text = HandshakeRefusal::OtherVersion {
        own: VERSION,
        peer: 77,
    };
    let text = text.to_string();
    assert!(
        text.contains("version 77") && text.contains(&format!("version {VERSION}")),
        "{text}"
    );
}

#[test]
fn a_rank_of_the_same_version_does_not_complain_about_the_version() {
    let (_, mut hello) = dial();
    hello[8] ^= 0x80;
    let complaint = accept().receive(&hello, |_| HelloVerdict::Accept);
    let (mut dial, _) = dial();
    let outcome = dial.receive(&complaint.send).outcome;
    assert!(
        matches!(outcome, HandshakeOutcome::Refused(why) if why.is_silent()),
        "{outcome:?}"
    );
}

#[test]
fn strangers_get_no_answer_and_are_not_judged() {
    let other_job = DialHandshake::new(DIALER, LISTENER, &[1; 16], [7; 16]).1;
    let other_rank = DialHandshake::new(DIALER, identity(4, 2), &TOKEN, [7; 16]).1;
    let itself = DialHandshake::new(identity(3, 2), LISTENER, &TOKEN, [7; 16]).1;
    let mut unsigned = dial().1;
    unsigned[HELLO_LEN..].fill(0);
    let named = |named| HandshakeRefusal::WrongRank { named };
    for (bytes, why) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], HandshakeRefusal::Stranger),
        (&[0xb5, 0], HandshakeRefusal::Stranger),
        (&other_job, HandshakeRefusal::WrongToken),
        (&unsigned, HandshakeRefusal::WrongToken),
        (&other_rank, named(4)),
        (&itself, named(3)),
    ] {
        for piece in [1, 200] {
            let mut accept = accept();
            let told = feed(bytes, piece, |bytes| {
                accept.receive(bytes, |_| panic!("strangers are not judged"))
            });
            assert_eq!((told.outcome, told.sent), (refused(why), Vec::new()));
        }
    }
    let step = accept().receive(&dial().1, |_| HelloVerdict::NoSuchRank);
    assert_eq!((step.outcome, step.send), (refused(named(8)), Vec::new()));
}

#[test]
fn a_hello_alone_proves_nothing() {
    let (mut dial, hello) = dial();
    let mut first = accept();
    let answer = first.receive(&hello, |_| HelloVerdict::Accept).send;
    let confirmation = dial.receive(&answer).send;
    let second = AcceptHandshake::new(LISTENER, &TOKEN, [10; 16]);
    let recorded = [&hello[..], &confirmation].concat();
    for bytes in [
        recorded.clone(),
        [&hello[..], &[0; PROOF_LEN]].concat(),
        // Its own proofs do not help the stranger either.
        [&hello[..], &answer[HELLO_LEN..]].concat(),
        [&hello[..], &hello[HELLO_LEN..]].concat(),
    ] {
        for piece in [1, 200] {
            let mut second = second.clone();
            let told = feed(&bytes, piece, |bytes| {
                second.receive(bytes, |_| HelloVerdict::Accept)
            });
            assert_eq!(told.outcome, refused(HandshakeRefusal::WrongToken));
        }
    }
    let same = first.receive(&confirmation, |_| HelloVerdict::Accept);
    assert_eq!(same.outcome, AGREED[1], "the confirmation itself is right");
}

#[test]
fn an_answer_is_believed_only_from_the_rank_that_was_dialed() {
    let listeners = [
        (LISTENER, [1; 16], HandshakeRefusal::WrongToken),
        (
            identity(4, 2),
            TOKEN,
            HandshakeRefusal::WrongRank { named: 4 },
        ),
    ];
    for (own, token, why) in listeners {
        // The listener agrees to whatever is said to it.
        let agreeable = DialHandshake::new(DIALER, own, &token, [7; 16]).1;
        let mut answer = AcceptHandshake::new(own, &token, [9; 16])
            .receive(&agreeable, |_| HelloVerdict::Accept)
            .send;
        let (mut dial, hello) = dial();
        if token == TOKEN {
            let bytes = super::hello::field(&answer, 0);
            let hello = super::hello::field(&hello, 0);
            let signature =
                super::hello::proof(&TOKEN, super::hello::ProofUse::Answer, &[&hello, &bytes]);
            answer[HELLO_LEN..].copy_from_slice(&signature);
        }
        let step = dial.receive(&answer);
        assert_eq!((step.outcome, step.send), (refused(why), Vec::new()));
    }
}

#[test]
fn an_echo_and_a_recorded_answer_are_no_answers() {
    let (mut echoed, hello) = dial();
    let step = echoed.receive(&hello);
    assert!(matches!(step.outcome, HandshakeOutcome::Refused(why) if why.is_silent()));
    let recorded = accept().receive(&hello, |_| HelloVerdict::Accept).send;
    let (mut later, _) = DialHandshake::new(DIALER, LISTENER, &TOKEN, [8; 16]);
    let step = later.receive(&recorded);
    assert_eq!(step.outcome, refused(HandshakeRefusal::WrongToken));
}

#[test]
fn a_handshake_that_has_ended_takes_no_more_bytes() {
    let (mut dial, hello) = dial();
    let mut accept = accept();
    let answer = accept.receive(&hello, |_| HelloVerdict::Duplicate);
    let step = dial.receive(&answer.send);
    for (again, ended) in [
        (dial.receive(&hello), step),
        (
            accept.receive(&hello, |_| panic!("the rank was judged before")),
            answer,
        ),
    ] {
        assert_eq!(again.outcome, ended.outcome);
        assert_eq!((again.consumed, again.send), (0, Vec::new()));
    }
}

#[test]
fn logs_of_handshakes_do_not_tell_the_token() {
    let token = [0xa7; 16];
    let (dial, _) = DialHandshake::new(DIALER, LISTENER, &token, [7; 16]);
    let texts = [
        format!("{dial:?}"),
        format!("{:?}", AcceptHandshake::new(LISTENER, &token, [9; 16])),
    ];
    assert!(texts.iter().all(|text| !text.contains("167")), "{texts:?}");
}

/// Bytes that are random, or bytes that begin like `right` and differ somewhere.
fn hostile(right: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 1..=u8::MAX);
    let edited = (prop::collection::vec(edit, 1..4), 0..40_usize).prop_map(move |(edits, more)| {
        let mut bytes = right.clone();
        for (at, flip) in edits {
            bytes[at.index(right.len())] ^= flip;
        }
        bytes.resize(bytes.len() + more, 0);
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..200), edited]
}

fn dialed_hello() -> Vec<u8> {
    dial().1.to_vec()
}

fn accepted_answer() -> Vec<u8> {
    accept().receive(&dial().1, |_| HelloVerdict::Accept).send
}

proptest! {
    #[test]
    fn hostile_bytes_never_connect_to_a_listener(
        bytes in hostile(dialed_hello()), piece in 1..100_usize
    ) {
        prop_assume!(!bytes.starts_with(&dialed_hello()));
        let mut accept = accept();
        let told = feed(&bytes, piece, |bytes| {
            accept.receive(bytes, |_| panic!("strangers are not judged"))
        });
        prop_assert!(!matches!(told.outcome, HandshakeOutcome::Ready(_)));
        let version = matches!(
            told.outcome, HandshakeOutcome::Refused(HandshakeRefusal::OtherVersion { .. })
        );
        prop_assert_eq!(told.sent.is_empty(), !version);
    }

    #[test]
    fn hostile_bytes_never_confirm(wrong in hostile(vec![0; PROOF_LEN]), piece in 1..100_usize) {
        let (mut dial, hello) = dial();
        let mut accept = accept();
        let answer = accept.receive(&hello, |_| HelloVerdict::Accept).send;
        let right = dial.receive(&answer).send;
        let flipped = right.iter().zip(&wrong).map(|(right, wrong)| right ^ wrong);
        for bytes in [flipped.collect(), wrong.clone()] {
            let bytes: Vec<u8> = bytes;
            prop_assume!(!bytes.starts_with(&right));
            let mut accept = accept.clone();
            let told = feed(&bytes, piece, |bytes| accept.receive(bytes, |_| panic!("once")));
            let expected = if bytes.len() < PROOF_LEN {
                HandshakeOutcome::Pending
            } else {
                refused(HandshakeRefusal::WrongToken)
            };
            prop_assert_eq!((told.outcome, told.sent), (expected, Vec::new()));
        }
    }

    #[test]
    fn hostile_bytes_never_pass_for_an_answer(
        bytes in hostile(accepted_answer()), piece in 1..100_usize
    ) {
        prop_assume!(!bytes.starts_with(&accepted_answer()));
        let (mut dial, _) = dial();
        let told = feed(&bytes, piece, |bytes| dial.receive(bytes));
        prop_assert!(!matches!(told.outcome, HandshakeOutcome::Ready(_)));
        prop_assert_eq!(told.sent, Vec::<u8>::new());
    }

    #[test]
    fn honest_ranks_agree_with_any_numbers(
        ranks in any::<[u32; 4]>(), token in any::<[u8; 16]>(), nonces in any::<[[u8; 16]; 2]>(),
        piece in 1..100_usize
    ) {
        let [own, incarnation, peer, other] = ranks;
        prop_assume!(own != peer);
        let (dialer, listener) = (identity(own, incarnation), identity(peer, other));
        let dial = DialHandshake::new(dialer, listener, &token, nonces[0]);
        let accept = AcceptHandshake::new(listener, &token, nonces[1]);
        prop_assert_eq!(
            talk(dial, accept, HelloVerdict::Accept, piece),
            [HandshakeOutcome::Ready(listener), HandshakeOutcome::Ready(dialer)]
        );
    }
}

#[test]
fn a_goodbye_is_believed_if_its_rank_knows_the_token_and_is_not_answered() {
    let reasons = [
        GiveUpReason::LongPackets,
        GiveUpReason::Damaged,
        GiveUpReason::Nonsense,
    ];
    let leaving = [RankGoodbye::Finished, RankGoodbye::Failed];
    for said in leaving.into_iter().chain(reasons.map(RankGoodbye::GaveUp)) {
        for piece in [1, SIGNED_LEN] {
            let hear = |bytes: &[u8]| {
                let mut accept = accept();
                let judge = |_| panic!("the rank asks for nothing");
                feed(bytes, piece, |bytes| accept.receive(bytes, judge))
            };
            let told = hear(&goodbye(DIALER, LISTENER, &TOKEN, said));
            let heard = HandshakeRefusal::Goodbye { of: DIALER, said };
            assert_eq!(told.outcome, refused(heard));
            assert_eq!((told.consumed, told.sent), (SIGNED_LEN, vec![]));
            let stranger = goodbye(DIALER, LISTENER, &[0; 16], said);
            let told = hear(&stranger);
            assert_eq!(told.outcome, refused(HandshakeRefusal::WrongToken));
            assert_eq!(told.sent, []);
        }
    }
}
