//! Arithmetic of atomics: every operator on every datatype for which it is defined.

mod extended;
#[cfg(test)]
mod tests;

use self::extended::LongDouble;
use crate::packet::SwapOperand;

/// Operation on an element of the target and one of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the specification's names say it")]
pub enum AtomicOperator {
    Min,
    Max,
    Sum,
    Prod,
    Lor,
    Land,
    Bor,
    Band,
    Lxor,
    Bxor,
    Swap,
    Cswap,
    CswapNe,
    CswapLe,
    CswapLt,
    CswapGe,
    CswapGt,
    Mswap,
}

/// Type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the specification's names say it")]
pub enum AtomicDatatype {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    Float,
    I64,
    U64,
    Double,
    FloatComplex,
    DoubleComplex,
    LongDouble,
    LongDoubleComplex,
}

impl AtomicOperator {
    /// All operators, in the order of their Portals 4.2 numbers.
    pub const ALL: [Self; 18] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Swap,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
    ];

    /// Returns true if the operator is valid for swaps only.
    #[must_use]
    pub const fn swaps(self) -> bool {
        !matches!(self, Self::Min | Self::Max | Self::Sum | Self::Prod) && !self.is_of_bits()
    }

    /// Returns true if the operator takes an operand, and so applies to a single element.
    #[must_use]
    pub const fn takes_operand(self) -> bool {
        self.swaps() && !matches!(self, Self::Swap)
    }

    const fn is_of_bits(self) -> bool {
        matches!(
            self,
            Self::Lor | Self::Land | Self::Bor | Self::Band | Self::Lxor | Self::Bxor
        )
    }

    const fn orders(self) -> bool {
        matches!(
            self,
            Self::Min | Self::Max | Self::CswapLe | Self::CswapLt | Self::CswapGe | Self::CswapGt
        )
    }

    /// Returns true if the operator is defined for `datatype`: bit operators need integers, and complex numbers have no order.
    #[must_use]
    pub const fn takes(self, datatype: AtomicDatatype) -> bool {
        if self.is_of_bits() || matches!(self, Self::Mswap) {
            return datatype.is_integer();
        }
        !(self.orders() && datatype.is_complex())
    }
}

impl AtomicDatatype {
    /// All datatypes, in the order of their Portals 4.2 numbers.
    pub const ALL: [Self; 14] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::Float,
        Self::I64,
        Self::U64,
        Self::Double,
        Self::FloatComplex,
        Self::DoubleComplex,
        Self::LongDouble,
        Self::LongDoubleComplex,
    ];

    /// Returns the bytes of an element, in the layout of C compilers on x86-64.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::Float => 4,
            Self::I64 | Self::U64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex | Self::LongDouble => 16,
            Self::LongDoubleComplex => 32,
        }
    }

    const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8
                | Self::U8
                | Self::I16
                | Self::U16
                | Self::I32
                | Self::U32
                | Self::I64
                | Self::U64
        )
    }

    const fn is_complex(self) -> bool {
        matches!(
            self,
            Self::FloatComplex | Self::DoubleComplex | Self::LongDoubleComplex
        )
    }
}

/// Replaces each element of `target` by the result of `operator` on it and the element of `source`.
///
/// Bytes after the last whole element do not change. An operator that is undefined for the datatype changes nothing.
pub(crate) fn apply(
    operator: AtomicOperator,
    datatype: AtomicDatatype,
    operand: &SwapOperand,
    target: &mut [u8],
    source: &[u8],
) {
    if !operator.takes(datatype) {
        return;
    }
    let size = datatype.size();
    let elements = target.chunks_exact_mut(size).zip(source.chunks_exact(size));
    for (target, source) in elements {
        if operator.swaps() {
            swap(operator, datatype, &operand[..size], target, source);
        } else {
            combine(operator, datatype, target, source);
        }
    }
}

fn combine(operator: AtomicOperator, datatype: AtomicDatatype, target: &mut [u8], source: &[u8]) {
    match datatype {
        AtomicDatatype::I8 => each::<i8, 1>(operator, target, source),
        AtomicDatatype::U8 => each::<u8, 1>(operator, target, source),
        AtomicDatatype::I16 => each::<i16, 2>(operator, target, source),
        AtomicDatatype::U16 => each::<u16, 2>(operator, target, source),
        AtomicDatatype::I32 => each::<i32, 4>(operator, target, source),
        AtomicDatatype::U32 => each::<u32, 4>(operator, target, source),
        AtomicDatatype::I64 => each::<i64, 8>(operator, target, source),
        AtomicDatatype::U64 => each::<u64, 8>(operator, target, source),
        AtomicDatatype::Float => each::<f32, 4>(operator, target, source),
        AtomicDatatype::Double => each::<f64, 8>(operator, target, source),
        AtomicDatatype::LongDouble => each::<LongDouble, 16>(operator, target, source),
        AtomicDatatype::FloatComplex => each_complex::<f32, 4>(operator, target, source),
        AtomicDatatype::DoubleComplex => each_complex::<f64, 8>(operator, target, source),
        AtomicDatatype::LongDoubleComplex => {
            each_complex::<LongDouble, 16>(operator, target, source)
        }
    }
}

fn each<T: AtomicElement<N>, const N: usize>(
    operator: AtomicOperator,
    target: &mut [u8],
    source: &[u8],
) {
    let (Some(target), Some(source)) = (target.as_mut_array(), source.as_array()) else {
        return;
    };
    let combined = T::from_bytes(target).combine(operator, T::from_bytes(source));
    *target = combined.to_bytes();
}

/// Applies sums and products; other operators are undefined for complex numbers.
fn each_complex<T: AtomicElement<N>, const N: usize>(
    operator: AtomicOperator,
    target: &mut [u8],
    source: &[u8],
) {
    let (target_re, target_im) = target.split_at_mut(N);
    let (source_re, source_im) = source.split_at(N);
    let (Some(re), Some(im)) = (target_re.as_mut_array(), target_im.as_mut_array()) else {
        return;
    };
    let (Some(other_re), Some(other_im)) = (source_re.as_array(), source_im.as_array()) else {
        return;
    };
    let (a, b) = (T::from_bytes(re), T::from_bytes(im));
    let (c, d) = (T::from_bytes(other_re), T::from_bytes(other_im));
    let (x, y) = if operator == AtomicOperator::Prod {
        let cross = |a: T, b: T| a.combine(AtomicOperator::Prod, b);
        (
            cross(a, c).minus(cross(b, d)),
            cross(a, d).combine(AtomicOperator::Sum, cross(b, c)),
        )
    } else {
        (
            a.combine(AtomicOperator::Sum, c),
            b.combine(AtomicOperator::Sum, d),
        )
    };
    (*re, *im) = (x.to_bytes(), y.to_bytes());
}

/// Replaces the target: `SWAP` always, `MSWAP` where the operand's bits are set, others if `operand OPERATOR target` holds.
fn swap(
    operator: AtomicOperator,
    datatype: AtomicDatatype,
    operand: &[u8],
    target: &mut [u8],
    source: &[u8],
) {
    if operator == AtomicOperator::Mswap {
        for ((target, source), mask) in target.iter_mut().zip(source).zip(operand) {
            *target = *target & !mask | source & mask;
        }
        return;
    }
    let order = || compare(datatype, operand, target);
    let swaps = match operator {
        AtomicOperator::Cswap => equal(datatype, operand, target),
        AtomicOperator::CswapNe => !equal(datatype, operand, target),
        AtomicOperator::CswapLe => order().is_some_and(std::cmp::Ordering::is_le),
        AtomicOperator::CswapLt => order().is_some_and(std::cmp::Ordering::is_lt),
        AtomicOperator::CswapGe => order().is_some_and(std::cmp::Ordering::is_ge),
        AtomicOperator::CswapGt => order().is_some_and(std::cmp::Ordering::is_gt),
        _ => true,
    };
    if swaps {
        target.copy_from_slice(source);
    }
}

fn equal(datatype: AtomicDatatype, a: &[u8], b: &[u8]) -> bool {
    let part = match datatype {
        AtomicDatatype::FloatComplex => AtomicDatatype::Float,
        AtomicDatatype::DoubleComplex => AtomicDatatype::Double,
        AtomicDatatype::LongDoubleComplex => AtomicDatatype::LongDouble,
        plain => plain,
    };
    let parts = a.chunks_exact(part.size()).zip(b.chunks_exact(part.size()));
    parts
        .into_iter()
        .all(|(a, b)| compare(part, a, b).is_some_and(std::cmp::Ordering::is_eq))
}

fn compare(datatype: AtomicDatatype, a: &[u8], b: &[u8]) -> Option<std::cmp::Ordering> {
    fn typed<T: AtomicElement<N>, const N: usize>(
        a: &[u8],
        b: &[u8],
    ) -> Option<std::cmp::Ordering> {
        T::from_bytes(a.as_array()?).partial_cmp(&T::from_bytes(b.as_array()?))
    }
    match datatype {
        AtomicDatatype::I8 => typed::<i8, 1>(a, b),
        AtomicDatatype::U8 => typed::<u8, 1>(a, b),
        AtomicDatatype::I16 => typed::<i16, 2>(a, b),
        AtomicDatatype::U16 => typed::<u16, 2>(a, b),
        AtomicDatatype::I32 => typed::<i32, 4>(a, b),
        AtomicDatatype::U32 => typed::<u32, 4>(a, b),
        AtomicDatatype::I64 => typed::<i64, 8>(a, b),
        AtomicDatatype::U64 => typed::<u64, 8>(a, b),
        AtomicDatatype::Float => typed::<f32, 4>(a, b),
        AtomicDatatype::Double => typed::<f64, 8>(a, b),
        AtomicDatatype::LongDouble => typed::<LongDouble, 16>(a, b),
        AtomicDatatype::FloatComplex
        | AtomicDatatype::DoubleComplex
        | AtomicDatatype::LongDoubleComplex => None,
    }
}

/// A number in native byte order.
trait AtomicElement<const N: usize>: Copy + PartialOrd {
    fn from_bytes(bytes: &[u8; N]) -> Self;
    fn to_bytes(self) -> [u8; N];
    fn combine(self, operator: AtomicOperator, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

/// Returns the smaller or the larger number. With a NaN the comparison fails, so the target's value stays.
fn extreme<T: PartialOrd>(operator: AtomicOperator, target: T, other: T) -> T {
    let replaces = match operator {
        AtomicOperator::Min => other < target,
        _ => other > target,
    };
    if replaces { other } else { target }
}

macro_rules! integers {
    ($($type:ty, $len:literal;)+) => {
        $(impl AtomicElement<$len> for $type {
            fn from_bytes(bytes: &[u8; $len]) -> Self {
                Self::from_ne_bytes(*bytes)
            }
            fn to_bytes(self) -> [u8; $len] {
                self.to_ne_bytes()
            }
            fn combine(self, operator: AtomicOperator, other: Self) -> Self {
                let truth = |holds: bool| Self::from(holds);
                match operator {
                    AtomicOperator::Sum => self.wrapping_add(other),
                    AtomicOperator::Prod => self.wrapping_mul(other),
                    AtomicOperator::Lor => truth(self != 0 || other != 0),
                    AtomicOperator::Land => truth(self != 0 && other != 0),
                    AtomicOperator::Lxor => truth((self != 0) != (other != 0)),
                    AtomicOperator::Bor => self | other,
                    AtomicOperator::Band => self & other,
                    AtomicOperator::Bxor => self ^ other,
                    _ => extreme(operator, self, other),
                }
            }
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
        })+
    };
}

integers! { i8, 1; u8, 1; i16, 2; u16, 2; i32, 4; u32, 4; i64, 8; u64, 8; }

macro_rules! floats {
    ($($type:ty, $len:literal;)+) => {
        $(impl AtomicElement<$len> for $type {
            fn from_bytes(bytes: &[u8; $len]) -> Self {
                Self::from_ne_bytes(*bytes)
            }
            fn to_bytes(self) -> [u8; $len] {
                self.to_ne_bytes()
            }
            fn combine(self, operator: AtomicOperator, other: Self) -> Self {
                match operator {
                    AtomicOperator::Sum => self + other,
                    AtomicOperator::Prod => self * other,
                    _ => extreme(operator, self, other),
                }
            }
            fn minus(self, other: Self) -> Self {
                self - other
            }
        })+
    };
}

floats! { f32, 4; f64, 8; }

impl AtomicElement<16> for LongDouble {
    fn from_bytes(bytes: &[u8; 16]) -> Self {
        Self::from_ne_bytes(bytes)
    }
    fn to_bytes(self) -> [u8; 16] {
        self.to_ne_bytes()
    }
    fn combine(self, operator: AtomicOperator, other: Self) -> Self {
        match operator {
            AtomicOperator::Sum => self.plus(other),
            AtomicOperator::Prod => self.times(other),
            _ => extreme(operator, self, other),
        }
    }
    fn minus(self, other: Self) -> Self {
        self.plus(other.negated())
    }
}
