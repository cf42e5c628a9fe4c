//! Messages in the wire format of protobuf.

/// Wire type of texts, bytes and messages.
const LENGTH_FOLLOWS: u64 = 2;

/// A message that is being written. Field numbers are those of its definition.
#[derive(Default)]
pub(super) struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    pub(super) fn with_capacity(len: usize) -> Self {
        Self(Vec::with_capacity(len))
    }

    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.put_number(field, value);
        self
    }

    pub(super) fn text(mut self, field: u64, text: &str) -> Self {
        self.put_bytes(field, text.as_bytes());
        self
    }

    pub(super) fn message(mut self, field: u64, message: &Self) -> Self {
        self.put_message(field, message);
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn put_number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    pub(super) fn put_bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH_FOLLOWS);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn put_message(&mut self, field: u64, message: &Self) {
        self.put_bytes(field, &message.0);
    }

    /// Appends a message that `write` makes in its place, so that its bytes are not copied.
    pub(super) fn nest(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        self.varint(field << 3 | LENGTH_FOLLOWS);
        let place = self.0.len();
        self.0.push(0);
        write(self);
        let len = self.0.len() - place - 1;
        match u8::try_from(len) {
            Ok(short) if short < 0x80 => self.0[place] = short,
            _ => {
                let mut long = Self::default();
                long.varint(len as u64);
                self.0.splice(place..=place, long.0);
            }
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::ProtoMessage;

    #[test]
    fn a_message_is_the_same_whether_it_is_copied_or_made_in_its_place() {
        for len in [0, 1, 124, 125, 126, 127, 128, 16_383, 16_384] {
            let text = "x".repeat(len);
            let inner = ProtoMessage::default().text(3, &text);
            let copied = ProtoMessage::default().message(7, &inner).number(9, 300);
            let mut nested = ProtoMessage::default();
            nested.nest(7, |inner| inner.put_bytes(3, text.as_bytes()));
            nested.put_number(9, 300);
            assert_eq!(nested.bytes(), copied.bytes(), "{len}");
        }
    }
}
