//! Atomic updates of numbers in memory that several ranks may update at the same time.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use bytemuck::Pod;
use ripstop_fabric::memory::MemoryRegion;

/// Operator by which an atomic update combines the number in the window with its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Combine {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Product,
    /// Smaller of the two. If one is a NaN, the other one.
    Min,
    /// Larger of the two. If one is a NaN, the other one.
    Max,
    /// Bitwise and, for integers.
    And,
    /// Bitwise or, for integers.
    Or,
    /// Bitwise exclusive or, for integers.
    Xor,
    /// The operand, whatever the number was.
    Replace,
    /// The unchanged number: an atomic read.
    Keep,
    /// The [`Located`](crate::Located) with the smaller value, of equal values the one with the lower location.
    MinLoc,
    /// The [`Located`](crate::Located) with the larger value, of equal values the one with the lower location.
    MaxLoc,
}

/// Number types that can be updated atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberType {
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
    I8,
    U8,
    I16,
    U16,
}

impl Combine {
    pub(crate) fn code(self) -> u32 {
        COMBINES
            .iter()
            .zip(0..)
            .find_map(|(&known, code)| (known == self).then_some(code))
            .unwrap_or_default()
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        COMBINES.get(code as usize).copied()
    }

    /// Returns true if this combines values that have locations.
    pub(super) fn is_of_locations(self) -> bool {
        matches!(self, Self::MinLoc | Self::MaxLoc)
    }

    fn is_bitwise(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }
}

impl NumberType {
    pub(crate) fn code(self) -> u32 {
        NUMBERS
            .iter()
            .zip(0..)
            .find_map(|(&known, code)| (known == self).then_some(code))
            .unwrap_or_default()
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        NUMBERS.get(code as usize).copied()
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns true if numbers of this type can be combined by this operator.
    pub(crate) fn allows(self, combine: Combine) -> bool {
        let is_float = matches!(self, Self::F32 | Self::F64);
        !(combine.is_bitwise() && is_float || combine.is_of_locations())
    }

    /// Updates the number at `offset` and returns its old value. Both values are bits, in the lowest ones for types of fewer
    /// than 64.
    ///
    /// # Panics
    /// Panics if the number is not inside the region, or not aligned.
    #[inline]
    pub(crate) fn update(
        self,
        region: &MemoryRegion,
        offset: usize,
        combine: Combine,
        bits: u64,
    ) -> u64 {
        if self.len() == 4 {
            let word = region.atomic_u32(offset);
            let new = |old: u32| Some(low(self.combine(combine, u64::from(old), bits)));
            return u64::from(
                word.fetch_update(SeqCst, Relaxed, new)
                    .unwrap_or_else(|old| old),
            );
        }
        if self.len() < 4 {
            return self.update_small(region, offset, combine, bits);
        }
        let word = region.atomic_u64(offset);
        match (self, combine) {
            (Self::I64 | Self::U64, Combine::Sum) => word.fetch_add(bits, SeqCst),
            (_, Combine::Replace) => word.swap(bits, SeqCst),
            (_, Combine::Keep) => word.load(SeqCst),
            _ => {
                let new = |old: u64| Some(self.combine(combine, old, bits));
                word.fetch_update(SeqCst, Relaxed, new)
                    .unwrap_or_else(|old| old)
            }
        }
    }

    /// Updates a number of 8 or 16 bits.
    fn update_small(
        self,
        region: &MemoryRegion,
        offset: usize,
        combine: Combine,
        bits: u64,
    ) -> u64 {
        if self.len() == 1 {
            let new = |old: u8| Some(lowest(self.combine(combine, u64::from(old), bits)));
            let byte = region.atomic_u8(offset);
            return u64::from(
                byte.fetch_update(SeqCst, Relaxed, new)
                    .unwrap_or_else(|old| old),
            );
        }
        let new = |old: u16| Some(lower(self.combine(combine, u64::from(old), bits)));
        let half = region.atomic_u16(offset);
        u64::from(
            half.fetch_update(SeqCst, Relaxed, new)
                .unwrap_or_else(|old| old),
        )
    }

    /// Writes `new` if the number's bits are equal to `expected`, and returns the old bits.
    ///
    /// # Panics
    /// Panics as [`update`](Self::update) does.
    #[inline]
    pub(crate) fn compare_swap(
        self,
        region: &MemoryRegion,
        offset: usize,
        expected: u64,
        new: u64,
    ) -> u64 {
        if self.len() == 4 {
            let word = region.atomic_u32(offset);
            let swapped = word.compare_exchange(low(expected), low(new), SeqCst, SeqCst);
            return u64::from(swapped.unwrap_or_else(|old| old));
        }
        if self.len() == 2 {
            let half = region.atomic_u16(offset);
            let swapped = half.compare_exchange(lower(expected), lower(new), SeqCst, SeqCst);
            return u64::from(swapped.unwrap_or_else(|old| old));
        }
        if self.len() == 1 {
            let byte = region.atomic_u8(offset);
            let swapped = byte.compare_exchange(lowest(expected), lowest(new), SeqCst, SeqCst);
            return u64::from(swapped.unwrap_or_else(|old| old));
        }
        let word = region.atomic_u64(offset);
        word.compare_exchange(expected, new, SeqCst, SeqCst)
            .unwrap_or_else(|old| old)
    }

    /// Updates many numbers without atomic instructions. Only for the holder of the end's
    /// [`UpdateLock`](super::update_lock::UpdateLock).
    ///
    /// # Panics
    /// Panics if the numbers are not inside the region.
    pub(crate) fn update_many(self, update: BulkUpdate<'_>) {
        match self {
            Self::I32 => update.run(integers::<i32>),
            Self::U32 => update.run(integers::<u32>),
            Self::F32 => update.run(floats::<f32>),
            Self::I64 => update.run(integers::<i64>),
            Self::U64 => update.run(integers::<u64>),
            Self::F64 => update.run(floats::<f64>),
            Self::I8 => update.run(integers::<i8>),
            Self::U8 => update.run(integers::<u8>),
            Self::I16 => update.run(integers::<i16>),
            Self::U16 => update.run(integers::<u16>),
        }
    }

    fn combine(self, combine: Combine, old: u64, new: u64) -> u64 {
        match self {
            Self::I32 => u64::from(
                integers(combine, low(old).cast_signed(), low(new).cast_signed()).cast_unsigned(),
            ),
            Self::U32 => u64::from(integers(combine, low(old), low(new))),
            Self::I64 => integers(combine, old.cast_signed(), new.cast_signed()).cast_unsigned(),
            Self::U64 => integers(combine, old, new),
            Self::F32 => {
                let (old, new) = (f32::from_bits(low(old)), f32::from_bits(low(new)));
                u64::from(floats(combine, old, new).to_bits())
            }
            Self::F64 => floats(combine, f64::from_bits(old), f64::from_bits(new)).to_bits(),
            Self::I8 => {
                let [old, new] = [old, new].map(|bits| lowest(bits).cast_signed());
                u64::from(integers(combine, old, new).cast_unsigned())
            }
            Self::U8 => u64::from(integers(combine, lowest(old), lowest(new))),
            Self::I16 => {
                let [old, new] = [old, new].map(|bits| lower(bits).cast_signed());
                u64::from(integers(combine, old, new).cast_unsigned())
            }
            Self::U16 => u64::from(integers(combine, lower(old), lower(new))),
        }
    }

    /// Reads the bits of one number from `bytes`.
    pub(crate) fn bits(self, bytes: &[u8]) -> u64 {
        match self.len() {
            1 => u64::from(bytes[0]),
            2 => u64::from(bytemuck::pod_read_unaligned::<u16>(&bytes[..2])),
            4 => u64::from(bytemuck::pod_read_unaligned::<u32>(&bytes[..4])),
            _ => bytemuck::pod_read_unaligned(&bytes[..8]),
        }
    }

    /// Writes the bits of one number.
    pub(crate) fn write(self, bits: u64, into: &mut [u8]) {
        match self.len() {
            1 => into[0] = lowest(bits),
            2 => into[..2].copy_from_slice(&lower(bits).to_ne_bytes()),
            4 => into[..4].copy_from_slice(&low(bits).to_ne_bytes()),
            _ => into[..8].copy_from_slice(&bits.to_ne_bytes()),
        }
    }
}

/// An update of consecutive numbers in a region.
pub(crate) struct BulkUpdate<'u> {
    pub(crate) region: &'u MemoryRegion,
    /// Offset of the first number in the region, in bytes.
    pub(crate) offset: usize,
    pub(crate) combine: Combine,
    /// One operand for each number.
    pub(crate) operands: &'u [u8],
    /// Receives the old values, unless they are not wanted.
    pub(crate) old: Option<&'u mut [u8]>,
}

impl BulkUpdate<'_> {
    fn run<N: Pod>(self, one: impl Fn(Combine, N, N) -> N + Copy) {
        if let Some(old) = self.old {
            self.region.read(self.offset, old);
        }
        if let Ok(operands) = bytemuck::try_cast_slice(self.operands) {
            return combine_all(self.region, self.offset, self.combine, operands, one);
        }
        // Bytes of a message are not aligned for their numbers.
        let mut aligned = [N::zeroed(); BLOCK];
        for (nth, bytes) in self.operands.chunks(size_of_val(&aligned)).enumerate() {
            let operands = &mut aligned[..bytes.len() / size_of::<N>()];
            bytemuck::cast_slice_mut(operands).copy_from_slice(bytes);
            let offset = self.offset + nth * size_of::<[N; BLOCK]>();
            combine_all(self.region, offset, self.combine, operands, one);
        }
    }
}

/// Operands that are aligned at a time.
const BLOCK: usize = 128;

/// Combines numbers of a region with their operands. Each operator has a loop of its own, which the compiler can turn into
/// vector instructions.
fn combine_all<N: Pod>(
    region: &MemoryRegion,
    offset: usize,
    combine: Combine,
    operands: &[N],
    one: impl Fn(Combine, N, N) -> N,
) {
    match combine {
        Combine::Sum => region.combine(offset, operands, |old, new| one(Combine::Sum, old, new)),
        Combine::Product => {
            region.combine(offset, operands, |old, new| one(Combine::Product, old, new))
        }
        Combine::Min => region.combine(offset, operands, |old, new| one(Combine::Min, old, new)),
        Combine::Max => region.combine(offset, operands, |old, new| one(Combine::Max, old, new)),
        Combine::And => region.combine(offset, operands, |old, new| one(Combine::And, old, new)),
        Combine::Or => region.combine(offset, operands, |old, new| one(Combine::Or, old, new)),
        Combine::Xor => region.combine(offset, operands, |old, new| one(Combine::Xor, old, new)),
        Combine::Replace => region.write(offset, bytemuck::cast_slice(operands)),
        Combine::Keep | Combine::MinLoc | Combine::MaxLoc => {}
    }
}

fn low(bits: u64) -> u32 {
    u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default()
}

fn lower(bits: u64) -> u16 {
    u16::try_from(bits & u64::from(u16::MAX)).unwrap_or_default()
}

fn lowest(bits: u64) -> u8 {
    u8::try_from(bits & u64::from(u8::MAX)).unwrap_or_default()
}

// Wrapping arithmetic of integers. Implemented by a macro, which is shorter than one `impl` for each type.
macro_rules! integer {
    ($($number:ty)*) => {$(
        impl WrappingInteger for $number {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
}

pub(super) trait WrappingInteger:
    Copy
    + Ord
    + std::ops::BitAnd<Output = Self>
    + std::ops::BitOr<Output = Self>
    + std::ops::BitXor<Output = Self>
{
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

integer!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);

/// Combines integers. Operators of located values return `old`; the types that lack them have refused them earlier.
pub(super) fn integers<N: WrappingInteger>(combine: Combine, old: N, new: N) -> N {
    match combine {
        Combine::Sum => old.sum(new),
        Combine::Product => old.product(new),
        Combine::Min => old.min(new),
        Combine::Max => old.max(new),
        Combine::And => old & new,
        Combine::Or => old | new,
        Combine::Xor => old ^ new,
        Combine::Replace => new,
        Combine::Keep | Combine::MinLoc | Combine::MaxLoc => old,
    }
}

trait Float: Copy + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
}

macro_rules! float {
    ($($number:ty)*) => {$(
        impl Float for $number {
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }
            fn greater(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

float!(f32 f64);

/// Combines floating-point numbers. Bitwise operators and those of located values return `old`; [`NumberType::allows`] has
/// refused them earlier.
fn floats<N: Float>(combine: Combine, old: N, new: N) -> N {
    match combine {
        Combine::Sum => old + new,
        Combine::Product => old * new,
        Combine::Min => old.lesser(new),
        Combine::Max => old.greater(new),
        Combine::Replace => new,
        Combine::Keep
        | Combine::And
        | Combine::Or
        | Combine::Xor
        | Combine::MinLoc
        | Combine::MaxLoc => old,
    }
}

pub(super) const COMBINES: [Combine; 11] = [
    Combine::Sum,
    Combine::Product,
    Combine::Min,
    Combine::Max,
    Combine::And,
    Combine::Or,
    Combine::Xor,
    Combine::Replace,
    Combine::Keep,
    Combine::MinLoc,
    Combine::MaxLoc,
];

pub(super) const NUMBERS: [NumberType; 10] = [
    NumberType::I32,
    NumberType::U32,
    NumberType::F32,
    NumberType::I64,
    NumberType::U64,
    NumberType::F64,
    NumberType::I8,
    NumberType::U8,
    NumberType::I16,
    NumberType::U16,
];

#[cfg(test)]
mod tests {
    use ripstop_fabric::memory::MemoryRegion;

    use super::{BLOCK, BulkUpdate, COMBINES, Combine, NUMBERS, NumberType};

    #[test]
    fn many_numbers_become_what_each_of_them_becomes_alone() {
        let count = 2 * BLOCK + 3;
        for number in NUMBERS {
            for combine in COMBINES
                .into_iter()
                .filter(|&combine| number.allows(combine))
            {
                let [many, single] = [(); 2]
                    .map(|()| MemoryRegion::create("numbers", 8 * (count + 1), false).unwrap());
                let (size, first) = (number.len(), 8);
                let filled: Vec<u8> = (0..113).cycle().take(count * size).collect();
                // Bytes that are not aligned for the numbers, as those of a message.
                let operands: Vec<u8> = (3..127).cycle().take(count * size + 1).collect();
                let operands = &operands[1..];
                many.write(first, &filled);
                single.write(first, &filled);
                let mut old = vec![0; filled.len()];
                number.update_many(BulkUpdate {
                    region: &many,
                    offset: first,
                    combine,
                    operands,
                    old: Some(&mut old),
                });
                assert_eq!(old, filled, "{number:?} {combine:?}");
                for (nth, operand) in operands.chunks(size).enumerate() {
                    number.update(&single, first + nth * size, combine, number.bits(operand));
                }
                let [many, single] = [many, single].map(|region| {
                    let mut bytes = vec![0; region.len()];
                    region.read(0, &mut bytes);
                    bytes
                });
                assert!(many == single, "{number:?} {combine:?}");
            }
        }
    }

    #[test]
    fn codes_name_what_they_came_from_and_nothing_else() {
        for combine in COMBINES {
            assert_eq!(Combine::from_code(combine.code()), Some(combine));
        }
        for number in NUMBERS {
            assert_eq!(NumberType::from_code(number.code()), Some(number));
        }
        assert_eq!(
            (Combine::from_code(11), NumberType::from_code(10)),
            (None, None)
        );
    }

    #[test]
    fn numbers_combine_as_their_type_says() {
        let minus_one = u64::from(u32::MAX);
        assert_eq!(
            NumberType::I32.combine(Combine::Min, 3, minus_one),
            minus_one
        );
        assert_eq!(NumberType::U32.combine(Combine::Min, 3, minus_one), 3);
        assert_eq!(NumberType::I32.combine(Combine::Sum, 1, minus_one), 0);
        assert_eq!(NumberType::U64.combine(Combine::Xor, 6, 3), 5);
        assert_eq!(NumberType::U8.combine(Combine::Sum, 255, 2), 1);
        assert_eq!(NumberType::I8.combine(Combine::Max, 255, 2), 2);
        assert_eq!(NumberType::I16.combine(Combine::Min, 0xffff, 2), 0xffff);
        assert_eq!(
            NumberType::U16.combine(Combine::Product, 0x100, 0x101),
            0x100
        );
        let [nan, two] = [f64::NAN, 2.0].map(f64::to_bits);
        assert_eq!(NumberType::F64.combine(Combine::Max, nan, two), two);
        let [half, quarter] = [0.5_f32, 0.25].map(|x| u64::from(x.to_bits()));
        assert_eq!(
            NumberType::F32.combine(Combine::Product, half, half),
            quarter
        );
        assert!(NumberType::I64.allows(Combine::And) && !NumberType::F64.allows(Combine::And));
    }

    #[test]
    fn bits_and_bytes_are_the_same() {
        for number in NUMBERS {
            let mut bytes = [0xff; 8];
            number.write(77, &mut bytes);
            assert_eq!(number.bits(&bytes), 77);
        }
    }
}
