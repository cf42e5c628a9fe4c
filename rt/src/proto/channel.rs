//! stub
#[derive(Debug)] pub(crate) struct Channel;
pub(crate) struct Frame { pub(crate) header: Vec<u8>, pub(crate) body: Vec<u8> }
#[derive(PartialEq, Eq)] pub(crate) enum Verdict { Deliver, Duplicate, Early, Refuse }
impl Channel { pub(crate) fn new() -> Self { Self } pub(crate) fn next_timeout(&self) -> Option<u64> { None }
 pub(crate) fn poll_transmit(&mut self, _: u64) -> Option<Frame> { None } pub(crate) fn untransmit(&mut self) {}
 pub(crate) fn next_seq(&self) -> Option<u16> { Some(0) } pub(crate) fn ack(&self) -> u16 { 0 } pub(crate) fn sent(&mut self, _: &[u8], _: &[u8]) {}
 pub(crate) fn handle_ack(&mut self, _: u16, _: u64) {} pub(crate) fn handle_nack(&mut self, _: u16, _: u64) {}
 pub(crate) fn accept(&mut self, _: u16, _: impl FnOnce() -> (Vec<u8>, Vec<u8>)) -> Verdict { Verdict::Deliver }
 pub(crate) fn pop_early(&mut self) -> Option<Frame> { None } }
#[derive(Debug)] pub(crate) struct Credits { left: u32, owed: u32, window: u32 }
const fn units(len: usize) -> u32 { (len / 64 + 1) as u32 }
impl Credits { pub(crate) fn new(bytes: usize, size: usize) -> Self { let w = ((bytes / 64 / size) as u32).clamp(512, 16384); Self { left: w, owed: 0, window: w } }
 pub(crate) fn spend(&mut self, len: usize) -> bool { let n = units(len); if self.left >= n { self.left -= n; true } else { false } }
 pub(crate) fn unspend(&mut self, len: usize) { self.left += units(len); }
 pub(crate) fn refund(&mut self, n: u16) { self.left = (self.left + u32::from(n)).min(self.window); }
 pub(crate) fn owe(&mut self, len: usize) -> bool { let before = self.owed; self.owed += units(len); before < self.window / 2 && self.owed >= self.window / 2 }
 pub(crate) fn due(&self) -> u16 { self.owed.min(65535) as u16 }
 pub(crate) fn returned(&mut self, n: u16) { self.owed -= u32::from(n); } }
