//! Messages of an agreement as headers. Pure.

use crate::proto::{
    agree::{AgreeMessage, AgreeOutMessage, AgreeValue, RankSet},
    wire::{self, DOWN_WORDS, HeaderBase, WireKind},
};

/// Returns the message in a header, with the ranks that its parts have named down, or `None` if no rank sends such a header.
pub(super) fn read(header: &wire::AgreeHeader, down: RankSet) -> Option<AgreeMessage> {
    let value = AgreeValue {
        flag: header.flag != 0,
        number: header.number,
        down,
    };
    match header.step {
        wire::SAY_REPORT => Some(AgreeMessage::Report {
            value,
            promised: header.promised != 0,
        }),
        wire::SAY_PROPOSE => Some(AgreeMessage::Propose(value)),
        wire::SAY_PROMISE => Some(AgreeMessage::Promise),
        wire::SAY_DECIDE => Some(AgreeMessage::Decide(value)),
        _ => None,
    }
}

/// Returns a message as headers: one, unless many ranks of a large communicator are down.
pub(super) fn headers(ctx: u32, outgoing: &AgreeOutMessage) -> Vec<wire::AgreeHeader> {
    let (what, promised, value) = match &outgoing.message {
        AgreeMessage::Report { value, promised } => (wire::SAY_REPORT, *promised, Some(value)),
        AgreeMessage::Propose(value) => (wire::SAY_PROPOSE, false, Some(value)),
        AgreeMessage::Promise => (wire::SAY_PROMISE, false, None),
        AgreeMessage::Decide(value) => (wire::SAY_DECIDE, false, Some(value)),
    };
    let mut header = wire::AgreeHeader {
        base: HeaderBase::new(WireKind::Agree),
        ctx,
        round: outgoing.round,
        step: what,
        flag: value.map_or(0, |value| u8::from(value.flag)),
        more: 0,
        promised: u8::from(promised),
        number: value.map_or(0, |value| value.number),
        at: 0,
        zero: 0,
        down: [0; DOWN_WORDS],
    };
    let words = value.map_or(&[][..], |value| value.down.words());
    let chunks = (0..).step_by(DOWN_WORDS).zip(words.chunks(DOWN_WORDS));
    let mut headers: Vec<_> = chunks
        .filter(|(_, chunk)| chunk.iter().any(|word| *word != 0))
        .map(|(at, chunk)| {
            (header.at, header.more) = (at, 1);
            header.down = [0; DOWN_WORDS];
            header.down[..chunk.len()].copy_from_slice(chunk);
            header
        })
        .collect();
    match headers.last_mut() {
        Some(last) => last.more = 0,
        None => headers.push(header),
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::{AgreeMessage, AgreeOutMessage, AgreeValue, RankSet, headers, read};

    #[test]
    fn all_that_is_said_comes_back_from_a_header() {
        let value = AgreeValue {
            flag: false,
            number: 9,
            down: RankSet::default(),
        };
        let report = |promised| AgreeMessage::Report {
            value: value.clone(),
            promised,
        };
        let all = [
            report(false),
            report(true),
            AgreeMessage::Propose(value.clone()),
            AgreeMessage::Promise,
            AgreeMessage::Decide(value.clone()),
        ];
        for say in all {
            let (to, round) = (1, 5);
            let outgoing = AgreeOutMessage {
                to,
                round,
                message: say,
            };
            let [header] = headers(4, &outgoing)[..] else {
                panic!("one is enough")
            };
            assert_eq!(read(&header, RankSet::default()), Some(outgoing.message));
        }
    }
}
