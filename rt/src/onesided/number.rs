//! Element types that are updated atomically.

use ripstop_fabric::memory::MemoryRegion;

use crate::{
    buffer::Wire,
    comm::{BitAnd, BitOr, BitXor, Max, Min, Product, Sum},
    engine::{Combine, NumberType},
};

/// Operator of a window's atomic updates that takes the operand, whatever the number was: an atomic write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replace;

/// Operator of a window's atomic updates that leaves the number as it is: an atomic read.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOp;

macro_rules! operators {
    ($($operator:ident: $combine:ident,)*) => {$(
        impl From<$operator> for Combine {
            fn from(_: $operator) -> Self {
                Self::$combine
            }
        }
    )*};
}

operators! {
    Sum: Sum,
    Product: Product,
    Min: Min,
    Max: Max,
    BitAnd: And,
    BitOr: Or,
    BitXor: Xor,
    Replace: Replace,
    NoOp: Keep,
}

/// A number type that windows update atomically: up to 64 bits.
///
/// For flags, take `u8` with `BitAnd`, `BitOr` and `BitXor`: a `bool` does not travel.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not updated atomically",
    label = "not a number of up to 64 bits",
    note = "accumulate and fetch numbers of these types: i8, u8, i16, u16, i32, u32, f32, i64, u64, f64, isize, usize; for \
            flags take u8; put and get a struct under an exclusive lock"
)]
pub trait Element: Wire + Sealed {}

mod sealed {
    use super::{Combine, MemoryRegion};

    /// The private part of [`Element`](super::Element), so that no other crate can implement it.
    #[expect(unnameable_types, reason = "only this crate implements it")]
    pub trait Sealed: Sized {
        /// Returns true if numbers of this type can be combined in this way.
        fn allows(combine: Combine) -> bool;

        /// Updates the number at an offset of a region, and returns the old value.
        fn update(region: &MemoryRegion, offset: usize, combine: Combine, operand: Self) -> Self;

        /// Writes `new` if the number equals `expected` bit by bit, and returns the old value.
        fn compare_swap(region: &MemoryRegion, offset: usize, expected: Self, new: Self) -> Self;

        /// Returns the code of the number kind; see [`NumberType::from_code`](super::NumberType::from_code).
        fn code() -> u32;
    }
}

use sealed::Sealed;

/// Returns the number kind of a type.
pub(super) fn number_of<T: Element>() -> NumberType {
    NumberType::from_code(T::code()).expect("codes name numbers")
}

macro_rules! elements {
    ($($element:ty: $number:ident as $bits:ty;)*) => {$(
        impl Element for $element {}

        impl Sealed for $element {
            fn allows(combine: Combine) -> bool {
                NumberType::$number.allows(combine)
            }

            #[inline]
            fn update(region: &MemoryRegion, offset: usize, combine: Combine, operand: Self) -> Self {
                let bits = bytemuck::cast::<Self, $bits>(operand);
                let old = NumberType::$number.update(region, offset, combine, u64::from(bits));
                bytemuck::cast(<$bits>::try_from(old).unwrap_or_default())
            }

            #[inline]
            fn compare_swap(region: &MemoryRegion, offset: usize, expected: Self, new: Self) -> Self {
                let [expected, new] = [expected, new].map(|x| u64::from(bytemuck::cast::<Self, $bits>(x)));
                let old = NumberType::$number.compare_swap(region, offset, expected, new);
                bytemuck::cast(<$bits>::try_from(old).unwrap_or_default())
            }

            fn code() -> u32 {
                NumberType::$number.code()
            }
        }
    )*};
}

elements! {
    i8: I8 as u8;
    u8: U8 as u8;
    i16: I16 as u16;
    u16: U16 as u16;
    i32: I32 as u32;
    u32: U32 as u32;
    f32: F32 as u32;
    i64: I64 as u64;
    u64: U64 as u64;
    f64: F64 as u64;
}

#[cfg(target_pointer_width = "64")]
elements! {
    isize: I64 as u64;
    usize: U64 as u64;
}
