//! Combining blocks of integers element by element, as adapters do it.

use bytemuck::Pod;

use crate::driver::LocalRange;

/// Operation on two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know every operator")]
pub enum CombineOperator {
    /// Sum, which wraps.
    Sum,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// Type of integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know every kind")]
#[expect(missing_docs, reason = "they are called as Rust calls them")]
pub enum IntegerType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
}

/// An operator, and the type of the elements that it combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an operator, and what it is for")]
pub struct TypedOperator {
    /// Operation on two elements.
    pub operator: CombineOperator,
    /// Type of the elements.
    pub integer: IntegerType,
}

impl IntegerType {
    /// Array of all types.
    pub const ALL: [Self; 8] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
    ];

    /// Returns the type with this many bytes, or `None` if there is none.
    #[must_use]
    pub const fn new(bytes: usize, signed: bool) -> Option<Self> {
        Some(match (bytes, signed) {
            (1, true) => Self::I8,
            (1, false) => Self::U8,
            (2, true) => Self::I16,
            (2, false) => Self::U16,
            (4, true) => Self::I32,
            (4, false) => Self::U32,
            (8, true) => Self::I64,
            (8, false) => Self::U64,
            _ => return None,
        })
    }

    /// Returns the bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }
}

impl TypedOperator {
    /// Combines by the processor: `into = into ⊕ from`. A part of an element at the end stays as it is.
    ///
    /// # Panics
    /// The ranges differ in length.
    pub(crate) fn apply(self, from: LocalRange, into: LocalRange) {
        let len = into.len();
        assert_eq!(from.len(), len, "a combination of ranges of two lengths");
        let (mut ours, mut theirs) = ([0; ROW], [0; ROW]);
        for at in (0..len).step_by(ROW) {
            let row = ROW.min(len - at);
            let (ours, theirs) = (&mut ours[..row], &mut theirs[..row]);
            into.slice(at, row).read(ours);
            from.slice(at, row).read(theirs);
            self.combine(ours, theirs);
            into.slice(at, row).write(ours);
        }
    }

    fn combine(self, into: &mut [u8], from: &[u8]) {
        macro_rules! rows {
            ($($kind:ident $number:ty)*) => {
                match self.integer {
                    $(IntegerType::$kind => rows(into, from, match self.operator {
                        CombineOperator::Sum => <$number>::wrapping_add,
                        CombineOperator::Min => <$number>::min,
                        CombineOperator::Max => <$number>::max,
                        CombineOperator::And => |a, b| a & b,
                        CombineOperator::Or => |a, b| a | b,
                        CombineOperator::Xor => |a, b| a ^ b,
                    } as fn($number, $number) -> $number),)*
                }
            };
        }
        rows!(I8 i8 U8 u8 I16 i16 U16 u16 I32 i32 U32 u32 I64 i64 U64 u64);
    }
}

fn rows<T: Pod>(into: &mut [u8], from: &[u8], combine: fn(T, T) -> T) {
    let size = size_of::<T>();
    for (into, from) in into.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
        let one = combine(
            bytemuck::pod_read_unaligned(into),
            bytemuck::pod_read_unaligned(from),
        );
        into.copy_from_slice(bytemuck::bytes_of(&one));
    }
}

/// Bytes that are combined at a time: whole elements of every type.
const ROW: usize = 512;
