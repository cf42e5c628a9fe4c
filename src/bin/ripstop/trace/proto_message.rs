//! Messages in the wire format of protobuf.

/// A message that is being written. Field numbers are those of its definition.
#[derive(Default)]
pub(super) struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.put_number(field, value);
        self
    }

    pub(super) fn text(mut self, field: u64, text: &str) -> Self {
        self.put_bytes(field, text.as_bytes());
        self
    }

    pub(super) fn message(mut self, field: u64, message: &Self) -> Self {
        self.put_bytes(field, &message.0);
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
        self.put_len(field, bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Appends what stands before the bytes of a field of this length.
    pub(super) fn put_len(&mut self, field: u64, len: usize) {
        self.varint(field << 3 | 2);
        self.varint(len as u64);
    }

    /// Appends a message of numbers, with their fields.
    pub(super) fn put_message(&mut self, field: u64, numbers: &[(u64, u64)]) {
        let lens = numbers.iter();
        let len = lens.map(|(field, value)| varint_len(field << 3) + varint_len(*value));
        self.put_len(field, len.sum());
        for (field, value) in numbers {
            self.put_number(*field, *value);
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

/// Returns how many bytes a number takes, of which each has seven of its bits.
const fn varint_len(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::{ProtoMessage, varint_len};

    #[test]
    fn the_length_of_a_number_is_known_before_it_is_written() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX] {
            let mut message = ProtoMessage::default();
            message.varint(value);
            assert_eq!(message.len(), varint_len(value), "{value}");
        }
    }
}
