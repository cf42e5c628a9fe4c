//! Numbers, texts and lists as bytes, for frames and setups. Numbers are little-endian, and a text follows its length.

/// Appends values to the bytes of a frame.
#[derive(Debug, Default)]
pub(in crate::run) struct PayloadWriter {
    pub(in crate::run) bytes: Vec<u8>,
}

impl PayloadWriter {
    pub(in crate::run) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(in crate::run) fn number(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(in crate::run) fn long(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends the length of `text` and the text itself.
    pub(in crate::run) fn text(&mut self, text: &[u8]) {
        self.number(u32::try_from(text.len()).expect("texts are far shorter than 4 GiB"));
        self.bytes.extend_from_slice(text);
    }

    /// Appends bytes without their length, as the last value.
    pub(in crate::run) fn rest(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

/// Takes values from bytes that may be anything. Each method returns `None` if the value is not there.
#[derive(Debug)]
pub(in crate::run) struct PayloadReader<'a> {
    bytes: &'a [u8],
}

impl<'a> PayloadReader<'a> {
    pub(in crate::run) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(in crate::run) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    pub(in crate::run) fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*number))
    }

    pub(in crate::run) fn long(&mut self) -> Option<u64> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub(in crate::run) fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.number()? as usize;
        let (text, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(text)
    }

    pub(in crate::run) fn string(&mut self) -> Option<String> {
        String::from_utf8(self.text()?.to_vec()).ok()
    }

    pub(in crate::run) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Takes values until the end. Each takes at least a byte, so their number is bounded by the length of the bytes.
    pub(in crate::run) fn list<T>(
        &mut self,
        mut next: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut list = Vec::new();
        while !self.bytes.is_empty() {
            list.push(next(self)?);
        }
        Some(list)
    }

    pub(in crate::run) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
