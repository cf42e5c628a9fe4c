//! The connecting side of a handshake.

use super::{
    HandshakeOutcome, HandshakeRefusal, HandshakeSecret, HandshakeStep, RankGoodbye, SIGNED_LEN,
    TcpIdentity,
    hello::{
        HELLO_LEN, HelloFrame, HelloKind, HelloStart, ProofUse, VERSION, field, proof, same_proof,
    },
    partial_input::PartialInput,
};

/// A handshake with a rank to which this one connects.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct DialHandshake {
    own: TcpIdentity,
    peer: TcpIdentity,
    secret: HandshakeSecret,
    hello: [u8; HELLO_LEN],
    answer: PartialInput<SIGNED_LEN>,
    outcome: HandshakeOutcome,
}

impl DialHandshake {
    /// Returns the handshake, and the bytes to send first.
    ///
    /// The token is that of the peer's address. The nonce is random and used for one connection only.
    pub(in crate::tcp) fn new(
        own: TcpIdentity,
        peer: TcpIdentity,
        token: &[u8; 16],
        nonce: [u8; 16],
    ) -> (Self, [u8; SIGNED_LEN]) {
        let frame = HelloFrame {
            kind: HelloKind::Dial,
            from: own,
            to: peer,
            nonce,
        };
        let handshake = Self {
            own,
            peer,
            secret: HandshakeSecret(*token),
            hello: frame.encode(),
            answer: PartialInput::new(),
            outcome: HandshakeOutcome::Pending,
        };
        (handshake, frame.signed(token))
    }

    /// Returns how many bytes the answer lacks. Frames of a peer that closes may follow them.
    pub(in crate::tcp) const fn missing(&self) -> usize {
        self.answer.missing()
    }

    /// Takes bytes that arrived. Once the handshake has ended, it takes none and repeats how it ended.
    pub(in crate::tcp) fn receive(&mut self, bytes: &[u8]) -> HandshakeStep {
        let mut step = HandshakeStep {
            consumed: 0,
            send: Vec::new(),
            outcome: self.outcome,
        };
        if self.outcome != HandshakeOutcome::Pending {
            return step;
        }
        step.consumed = self.answer.take(bytes);
        self.outcome = match self.judge() {
            Ok(None) => HandshakeOutcome::Pending,
            Ok(Some(confirmation)) => {
                step.send.extend(confirmation);
                HandshakeOutcome::Ready(self.peer)
            }
            Err(why) => HandshakeOutcome::Refused(why),
        };
        step.outcome = self.outcome;
        step
    }

    /// Returns the confirmation if the peer has agreed.
    fn judge(&self) -> Result<Option<[u8; 16]>, HandshakeRefusal> {
        match HelloStart::of(self.answer.arrived()) {
            HelloStart::Stranger => return Err(HandshakeRefusal::Stranger),
            HelloStart::Version(peer) if peer != VERSION => {
                return Err(HandshakeRefusal::OtherVersion { own: VERSION, peer });
            }
            HelloStart::Plausible | HelloStart::Version(_) => {}
        }
        let Some(answer) = self.answer.whole() else {
            return Ok(None);
        };
        let bytes = field(answer, 0);
        self.judge_answer(&bytes, &field(answer, HELLO_LEN))?;
        let hellos = [&self.hello, &bytes];
        Ok(Some(proof(&self.secret.0, ProofUse::Confirm, &hellos)))
    }

    fn judge_answer(
        &self,
        bytes: &[u8; HELLO_LEN],
        signature: &[u8; 16],
    ) -> Result<(), HandshakeRefusal> {
        let answer = HelloFrame::decode(bytes).ok_or(HandshakeRefusal::Stranger)?;
        let right = proof(&self.secret.0, ProofUse::Answer, &[&self.hello, bytes]);
        if !same_proof(&right, signature) {
            return Err(HandshakeRefusal::WrongToken);
        }
        self.check_ranks(&answer)?;
        match answer.kind {
            HelloKind::Accepted => Ok(()),
            HelloKind::Duplicate => Err(HandshakeRefusal::Duplicate),
            // Nothing differs that could be the reason.
            _ => Err(HandshakeRefusal::Stranger),
        }
    }

    /// Checks that both sides mean the same two runs of the same two ranks.
    fn check_ranks(&self, answer: &HelloFrame) -> Result<(), HandshakeRefusal> {
        for (meant, named) in [(self.peer, answer.from), (self.own, answer.to)] {
            if meant.rank != named.rank {
                return Err(HandshakeRefusal::WrongRank { named: named.rank });
            }
        }
        if answer.from != self.peer {
            return Err(HandshakeRefusal::OtherIncarnation {
                running: answer.from,
                expected: self.peer.incarnation,
            });
        }
        if answer.to != self.own {
            return Err(HandshakeRefusal::OtherIncarnation {
                running: self.own,
                expected: answer.to.incarnation,
            });
        }
        Ok(())
    }
}

/// Returns the goodbye of a rank to a peer: the only bytes of a connection of their own.
///
/// The token is that of the peer's address. The goodbye stays true, so a repetition does no harm, and it needs no random nonce.
pub(in crate::tcp) fn goodbye(
    own: TcpIdentity,
    peer: TcpIdentity,
    token: &[u8; 16],
    said: RankGoodbye,
) -> [u8; SIGNED_LEN] {
    let frame = HelloFrame {
        kind: HelloKind::of_goodbye(said),
        from: own,
        to: peer,
        nonce: [0; 16],
    };
    frame.signed(token)
}
