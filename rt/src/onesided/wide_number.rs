//! Elements of more than 64 bits that are updated atomically: integers, and values with their locations.

use ripstop_fabric::memory::MemoryRegion;

use super::number::{Element, ElementType, Sealed};
use crate::{
    comm::Located,
    engine::{Combine, NumberType, WideElement},
};

macro_rules! wide_elements {
    ($($element:ty: $wide:expr;)*) => {$(
        impl Element for $element {}

        impl Sealed for $element {
            fn update(region: &MemoryRegion, offset: usize, combine: Combine, operand: Self) -> Self {
                let operand = $wide.bits(bytemuck::bytes_of(&operand));
                of_bits($wide, $wide.update(region, offset, combine, operand))
            }

            fn compare_swap(region: &MemoryRegion, offset: usize, expected: Self, new: Self) -> Self {
                let [expected, new] = [expected, new].map(|value| $wide.bits(bytemuck::bytes_of(&value)));
                of_bits($wide, $wide.compare_swap(region, offset, expected, new))
            }

            #[inline]
            fn element_type() -> ElementType {
                ElementType::wide($wide)
            }
        }
    )*};
}

wide_elements! {
    i128: WideElement::I128;
    u128: WideElement::U128;
    Located<i8>: WideElement::Located(NumberType::I8);
    Located<u8>: WideElement::Located(NumberType::U8);
    Located<i16>: WideElement::Located(NumberType::I16);
    Located<u16>: WideElement::Located(NumberType::U16);
    Located<i32>: WideElement::Located(NumberType::I32);
    Located<u32>: WideElement::Located(NumberType::U32);
    Located<f32>: WideElement::Located(NumberType::F32);
    Located<i64>: WideElement::Located(NumberType::I64);
    Located<u64>: WideElement::Located(NumberType::U64);
    Located<f64>: WideElement::Located(NumberType::F64);
}

#[cfg(target_pointer_width = "64")]
wide_elements! {
    Located<isize>: WideElement::Located(NumberType::I64);
    Located<usize>: WideElement::Located(NumberType::U64);
}

fn of_bits<T: Element>(element: WideElement, bits: u128) -> T {
    let mut value = T::zeroed();
    element.write(bits, bytemuck::bytes_of_mut(&mut value));
    value
}
