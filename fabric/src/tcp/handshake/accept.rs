//! The listening side of a handshake.

use super::{
    HandshakeOutcome, HandshakeRefusal, HandshakeSecret, HandshakeStep, SIGNED_LEN, TcpIdentity,
    hello::{
        HELLO_LEN, HelloFrame, HelloKind, HelloStart, PROOF_LEN, ProofUse, VERSION, field, proof,
        same_proof,
    },
    partial_input::PartialInput,
};

/// A handshake with something that has connected to this rank.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct AcceptHandshake {
    own: TcpIdentity,
    secret: HandshakeSecret,
    nonce: [u8; 16],
    hello: PartialInput<SIGNED_LEN>,
    confirmation: PartialInput<PROOF_LEN>,
    stage: AcceptStage,
}

/// What the owner of the connections says about a rank that knows the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum HelloVerdict {
    /// The rank may connect. From now on the connection is kept until it ends by itself.
    Accept,
    /// Another connection is kept: see [`PairStage`](super::PairStage).
    Duplicate,
    /// The rank is known in another incarnation.
    OtherIncarnation(u32),
    /// The job has no such rank, or that rank has ended.
    NoSuchRank,
}

/// What the listening side waits for.
#[derive(Clone, Copy, Debug)]
enum AcceptStage {
    Hello,
    /// The peer has been answered, and should confirm with this proof.
    Confirmation(TcpIdentity, [u8; PROOF_LEN]),
    Ended(HandshakeOutcome),
}

impl AcceptHandshake {
    /// Returns a handshake that waits for a hello.
    ///
    /// The token is that of this rank's address. The nonce is random and used for one connection only.
    pub(in crate::tcp) const fn new(own: TcpIdentity, token: &[u8; 16], nonce: [u8; 16]) -> Self {
        Self {
            own,
            secret: HandshakeSecret(*token),
            nonce,
            hello: PartialInput::new(),
            confirmation: PartialInput::new(),
            stage: AcceptStage::Hello,
        }
    }

    /// Takes bytes that arrived. Once the handshake has ended, it takes none and repeats how it ended.
    ///
    /// `judge` is called at most once in a handshake, with a rank that seems to know the token. Its hello may be a recorded one,
    /// so nothing but the fate of this connection and of own attempts may depend on it before the handshake is ready.
    pub(in crate::tcp) fn receive(
        &mut self,
        bytes: &[u8],
        judge: impl FnMut(TcpIdentity) -> HelloVerdict,
    ) -> HandshakeStep {
        let mut step = HandshakeStep {
            consumed: 0,
            send: Vec::new(),
            outcome: HandshakeOutcome::Pending,
        };
        if matches!(self.stage, AcceptStage::Hello) {
            step.consumed += self.hello.take(bytes);
            match self.judge_hello(judge) {
                Ok(Some((peer, answer))) => self.answer(peer, answer, &mut step),
                Ok(None) => {}
                Err(refusal) => self.refuse(refusal, &mut step),
            }
        }
        if let AcceptStage::Confirmation(peer, right) = self.stage {
            step.consumed += self.confirmation.take(&bytes[step.consumed..]);
            if let Some(confirmation) = self.confirmation.whole() {
                if same_proof(&right, confirmation) {
                    self.stage = AcceptStage::Ended(HandshakeOutcome::Ready(peer));
                } else {
                    self.refuse(HandshakeRefusal::WrongToken.into(), &mut step);
                }
            }
        }
        if let AcceptStage::Ended(outcome) = self.stage {
            step.outcome = outcome;
        }
        step
    }

    /// Returns the nonce of the hello, once all of it has arrived.
    pub(in crate::tcp) fn hello_nonce(&self) -> Option<[u8; 16]> {
        let hello = HelloFrame::decode(&field(self.hello.whole()?, 0))?;
        Some(hello.nonce)
    }

    /// Returns the rank to answer, and the answer, if the whole hello has arrived and is fine.
    fn judge_hello(
        &self,
        mut judge: impl FnMut(TcpIdentity) -> HelloVerdict,
    ) -> Result<Option<(TcpIdentity, HelloFrame)>, ToldRefusal> {
        match HelloStart::of(self.hello.arrived()) {
            HelloStart::Stranger => return Err(HandshakeRefusal::Stranger.into()),
            HelloStart::Version(peer) if peer != VERSION => return Err(self.other_version(peer)),
            HelloStart::Plausible | HelloStart::Version(_) => {}
        }
        let Some(signed) = self.hello.whole() else {
            return Ok(None);
        };
        let hello = self.check_proof(signed)?;
        let peer = hello.from;
        if let Some(said) = hello.kind.goodbye() {
            return Err(HandshakeRefusal::Goodbye { of: peer, said }.into());
        }
        if hello.to != self.own {
            let refusal = HandshakeRefusal::OtherIncarnation {
                running: self.own,
                expected: hello.to.incarnation,
            };
            return Err(self.told(refusal, HelloKind::OtherIncarnation, peer));
        }
        match judge(peer) {
            HelloVerdict::Accept => Ok(Some((peer, self.frame(HelloKind::Accepted, peer)))),
            HelloVerdict::Duplicate => {
                Err(self.told(HandshakeRefusal::Duplicate, HelloKind::Duplicate, peer))
            }
            HelloVerdict::OtherIncarnation(expected) => {
                let refusal = HandshakeRefusal::OtherIncarnation {
                    running: peer,
                    expected,
                };
                let known = TcpIdentity {
                    incarnation: expected,
                    ..peer
                };
                Err(self.told(refusal, HelloKind::OtherIncarnation, known))
            }
            HelloVerdict::NoSuchRank => {
                Err(HandshakeRefusal::WrongRank { named: peer.rank }.into())
            }
        }
    }

    /// Returns the hello of something that knows this rank and its token.
    fn check_proof(&self, signed: &[u8; SIGNED_LEN]) -> Result<HelloFrame, HandshakeRefusal> {
        let bytes = field(signed, 0);
        let hello = HelloFrame::decode(&bytes)
            .filter(|hello| hello.kind == HelloKind::Dial || hello.kind.goodbye().is_some())
            .ok_or(HandshakeRefusal::Stranger)?;
        if hello.to.rank != self.own.rank {
            return Err(HandshakeRefusal::WrongRank {
                named: hello.to.rank,
            });
        }
        let right = proof(&self.secret.0, ProofUse::Hello, &[&bytes]);
        if !same_proof(&right, &field(signed, HELLO_LEN)) {
            return Err(HandshakeRefusal::WrongToken);
        }
        // A connection to an own port can end at the socket that opened it.
        if hello.from.rank == self.own.rank {
            return Err(HandshakeRefusal::WrongRank {
                named: hello.from.rank,
            });
        }
        Ok(hello)
    }

    fn answer(&mut self, peer: TcpIdentity, answer: HelloFrame, step: &mut HandshakeStep) {
        let (hello, answer_bytes) = (field(self.hello.arrived(), 0), answer.encode());
        let right = proof(&self.secret.0, ProofUse::Confirm, &[&hello, &answer_bytes]);
        step.send.extend(self.signed(&answer));
        self.stage = AcceptStage::Confirmation(peer, right);
    }

    fn refuse(&mut self, refusal: ToldRefusal, step: &mut HandshakeStep) {
        step.send.clear();
        step.send.extend(refusal.answer.iter().flatten());
        self.stage = AcceptStage::Ended(HandshakeOutcome::Refused(refusal.why));
    }

    /// Returns a refusal that the other side is told.
    fn told(&self, why: HandshakeRefusal, kind: HelloKind, to: TcpIdentity) -> ToldRefusal {
        ToldRefusal {
            why,
            answer: Some(self.signed(&self.frame(kind, to))),
        }
    }

    /// Returns a refusal that ranks of all versions understand. It is not signed, because their hellos may have other lengths.
    fn other_version(&self, peer: u16) -> ToldRefusal {
        let mut answer = [0; SIGNED_LEN];
        let hello = self.frame(HelloKind::OtherVersion, self.own);
        answer[..HELLO_LEN].copy_from_slice(&hello.encode());
        ToldRefusal {
            why: HandshakeRefusal::OtherVersion { own: VERSION, peer },
            answer: Some(answer),
        }
    }

    const fn frame(&self, kind: HelloKind, to: TcpIdentity) -> HelloFrame {
        HelloFrame {
            kind,
            from: self.own,
            to,
            nonce: self.nonce,
        }
    }

    /// Returns an answer with its proof. The whole hello must have arrived.
    fn signed(&self, answer: &HelloFrame) -> [u8; SIGNED_LEN] {
        let (hello, bytes) = (field(self.hello.arrived(), 0), answer.encode());
        let mut signed = [0; SIGNED_LEN];
        signed[..HELLO_LEN].copy_from_slice(&bytes);
        let signature = proof(&self.secret.0, ProofUse::Answer, &[&hello, &bytes]);
        signed[HELLO_LEN..].copy_from_slice(&signature);
        signed
    }
}

/// A refusal, and what the other side is told about it.
struct ToldRefusal {
    why: HandshakeRefusal,
    answer: Option<[u8; SIGNED_LEN]>,
}

impl From<HandshakeRefusal> for ToldRefusal {
    fn from(why: HandshakeRefusal) -> Self {
        debug_assert!(why.is_silent(), "{why} is told to the other side");
        Self { why, answer: None }
    }
}
