//! Element types that are updated atomically.

use ripstop_fabric::memory::MemoryRegion;

use crate::{
    buffer::Wire,
    comm::{BitAnd, BitOr, BitXor, Max, MaxLoc, Min, MinLoc, Product, Sum},
    engine::{Combine, NumberType, WideElement, WindowOpKind},
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
    MinLoc: MinLoc,
    MaxLoc: MaxLoc,
}

/// A type that windows update atomically: a number of up to 128 bits, or a value with its location.
///
/// Numbers of up to 64 bits are updated in place by each rank that maps them. Elements of 16 bytes, which are integers of
/// 128 bits and a [`Located`](crate::Located) of a value of 64 bits, are too where the processor can (`cmpxchg16b` of x86-64).
/// Otherwise, and for a `Located` of a shorter value, updates go to the target's runtime, which makes one at a time. In any
/// case, updates of all ranks are atomic among each other, one element each. Gets, puts and slices are not: they may see one
/// half of an element of 16 bytes from before an update and the other half from after it.
///
/// For flags, take `u8` with `BitAnd`, `BitOr` and `BitXor`: a `bool` does not travel.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not updated atomically",
    label = "neither a number nor a `Located` number",
    note = "accumulate and fetch numbers of these types: i8, u8, i16, u16, i32, u32, f32, i64, u64, f64, isize, usize, i128, \
            u128, and `Located` of those up to 64 bits; for flags take u8; put and get a struct under an exclusive lock"
)]
pub trait Element: Wire + Sealed {}

mod sealed {
    use super::{Combine, ElementType, MemoryRegion};

    /// The private part of [`Element`](super::Element), so that no other crate can implement it.
    #[expect(unnameable_types, reason = "only this crate implements it")]
    pub trait Sealed: Sized {
        /// Updates the number at an offset of a region, and returns the old value.
        fn update(region: &MemoryRegion, offset: usize, combine: Combine, operand: Self) -> Self;

        /// Writes `new` if the number equals `expected` bit by bit, and returns the old value.
        fn compare_swap(region: &MemoryRegion, offset: usize, expected: Self, new: Self) -> Self;

        /// Returns the type, for the owner's engine.
        fn element_type() -> ElementType;
    }
}

pub(super) use sealed::Sealed;

/// The type of an element, as the engine of its owner knows it.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "only this crate makes and reads one")]
pub struct ElementType(ElementKind);

#[derive(Clone, Copy, Debug)]
enum ElementKind {
    Number(NumberType),
    Wide(WideElement),
}

impl ElementType {
    pub(super) const fn wide(element: WideElement) -> Self {
        Self(ElementKind::Wide(element))
    }

    /// Returns the number type, if vector instructions combine elements of this type.
    pub(super) const fn number(self) -> Option<NumberType> {
        match self.0 {
            ElementKind::Number(number) => Some(number),
            ElementKind::Wide(_) => None,
        }
    }

    /// Returns true if elements of this type can be combined by this operator.
    #[inline]
    pub(super) fn allows(self, combine: Combine) -> bool {
        match self.0 {
            ElementKind::Number(number) => number.allows(combine),
            ElementKind::Wide(element) => element.allows(combine),
        }
    }

    /// Returns true if each process that maps an element may update it. Otherwise only the engine of its owner may.
    #[inline]
    pub(super) fn is_in_place(self) -> bool {
        match self.0 {
            ElementKind::Number(_) => true,
            ElementKind::Wide(element) => element.is_in_place(),
        }
    }

    /// Returns the operation by which the owner's engine updates elements.
    pub(super) const fn update(self, combine: Combine, fetch: bool) -> WindowOpKind {
        match self.0 {
            ElementKind::Number(number) => WindowOpKind::Update {
                number,
                combine,
                fetch,
            },
            ElementKind::Wide(element) => WindowOpKind::UpdateWide {
                element,
                combine,
                fetch,
            },
        }
    }

    /// Returns the operation by which the owner's engine compares and swaps an element.
    pub(super) const fn compare_swap(self) -> WindowOpKind {
        match self.0 {
            ElementKind::Number(number) => WindowOpKind::CompareSwap { number },
            ElementKind::Wide(element) => WindowOpKind::CompareSwapWide { element },
        }
    }
}

macro_rules! elements {
    ($($element:ty: $number:ident as $bits:ty;)*) => {$(
        impl Element for $element {}

        impl Sealed for $element {
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

            #[inline]
            fn element_type() -> ElementType {
                ElementType(ElementKind::Number(NumberType::$number))
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
