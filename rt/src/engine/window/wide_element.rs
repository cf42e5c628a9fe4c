//! Atomic updates of elements that are no numbers of up to 64 bits: integers of 128 bits, and values with their locations.
//!
//! Elements of 16 bytes are updated in place where the processor can
//! ([`has_wide_atomics`](MemoryRegion::has_wide_atomics)), by each process that maps them. All others are updated by the
//! engine of their owner alone, one after the other.

use ripstop_fabric::memory::MemoryRegion;

use super::number::{Combine, NumberType, integers};
use crate::{
    buffer::Wire,
    comm::{Located, MaxLoc, MinLoc, ReduceOp},
};

/// Types of such elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WideElement {
    I128,
    U128,
    /// A value of this type, and 64 bits for its location.
    Located(NumberType),
}

impl WideElement {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::I128 => 0,
            Self::U128 => 1,
            Self::Located(value) => FIRST_LOCATED + value.code(),
        }
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::I128),
            1 => Some(Self::U128),
            _ => NumberType::from_code(code - FIRST_LOCATED).map(Self::Located),
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::I128 | Self::U128 => size_of::<u128>(),
            Self::Located(value) => value.len() + size_of::<u64>(),
        }
    }

    /// Returns true if elements of this type can be combined by this operator.
    pub(crate) fn allows(self, combine: Combine) -> bool {
        match self {
            Self::I128 | Self::U128 => !combine.is_of_locations(),
            Self::Located(_) => {
                combine.is_of_locations() || matches!(combine, Combine::Replace | Combine::Keep)
            }
        }
    }

    /// Returns true if each process that maps an element may update it. Otherwise only the engine of its owner may.
    pub(crate) fn is_in_place(self) -> bool {
        self.len() == size_of::<u128>() && MemoryRegion::has_wide_atomics()
    }

    /// Updates the element at `offset` and returns its old value. Both values are bits, those of [`bits`](Self::bits).
    ///
    /// # Panics
    /// Panics if the element is not inside the region, or not at a multiple of its length.
    pub(crate) fn update(
        self,
        region: &MemoryRegion,
        offset: usize,
        combine: Combine,
        operand: u128,
    ) -> u128 {
        self.change(region, offset, |old| self.combine(combine, old, operand))
    }

    /// Writes `new` if the element's bits are equal to `expected`, and returns the old bits.
    ///
    /// # Panics
    /// Panics as [`update`](Self::update) does.
    pub(crate) fn compare_swap(
        self,
        region: &MemoryRegion,
        offset: usize,
        expected: u128,
        new: u128,
    ) -> u128 {
        let swap = |old| if old == expected { new } else { old };
        self.change(region, offset, swap)
    }

    fn change(self, region: &MemoryRegion, offset: usize, new: impl Fn(u128) -> u128) -> u128 {
        assert!(offset.is_multiple_of(self.len()), "an element at {offset}");
        if self.is_in_place() {
            return region.update_wide(offset, new);
        }
        // This is the engine of the owner, which its lock lets make one update at a time.
        let mut bytes = [0; size_of::<u128>()];
        let bytes = &mut bytes[..self.len()];
        region.read(offset, bytes);
        let old = self.bits(bytes);
        self.write(new(old), bytes);
        region.write(offset, bytes);
        old
    }

    fn combine(self, combine: Combine, old: u128, new: u128) -> u128 {
        let combine_located = match self {
            Self::U128 => return integers(combine, old, new),
            Self::I128 => {
                return integers(combine, old.cast_signed(), new.cast_signed()).cast_unsigned();
            }
            Self::Located(value) => match value {
                NumberType::I8 => located::<i8>,
                NumberType::U8 => located::<u8>,
                NumberType::I16 => located::<i16>,
                NumberType::U16 => located::<u16>,
                NumberType::I32 => located::<i32>,
                NumberType::U32 => located::<u32>,
                NumberType::F32 => located::<f32>,
                NumberType::I64 => located::<i64>,
                NumberType::U64 => located::<u64>,
                NumberType::F64 => located::<f64>,
            },
        };
        combine_located(self, combine, [old, new])
    }

    /// Reads the bits of one element, in the order of its bytes. The bits of a short one are followed by zeros.
    pub(crate) fn bits(self, bytes: &[u8]) -> u128 {
        let mut all = [0; size_of::<u128>()];
        all[..self.len()].copy_from_slice(&bytes[..self.len()]);
        u128::from_ne_bytes(all)
    }

    /// Writes the bits of one element.
    pub(crate) fn write(self, bits: u128, into: &mut [u8]) {
        into[..self.len()].copy_from_slice(&bits.to_ne_bytes()[..self.len()]);
    }
}

/// Combines two located values. Operators that [`WideElement::allows`] has refused return the old one.
fn located<T: Wire + PartialOrd>(
    element: WideElement,
    combine: Combine,
    operands: [u128; 2],
) -> u128 {
    let [old, new] = operands.map(|bits| {
        let bytes = bits.to_ne_bytes();
        bytemuck::pod_read_unaligned::<Located<T>>(&bytes[..element.len()])
    });
    let combined = match combine {
        Combine::MinLoc => MinLoc.combine(old, new),
        Combine::MaxLoc => MaxLoc.combine(old, new),
        Combine::Replace => new,
        _ => old,
    };
    element.bits(bytemuck::bytes_of(&combined))
}

/// Code of the first type with locations; those below are integers.
const FIRST_LOCATED: u32 = 2;

#[cfg(test)]
mod tests {
    use ripstop_fabric::memory::MemoryRegion;

    use super::{super::number::NUMBERS, Combine, Located, WideElement};

    fn all() -> Vec<WideElement> {
        let located = NUMBERS.map(WideElement::Located);
        [WideElement::I128, WideElement::U128]
            .into_iter()
            .chain(located)
            .collect()
    }

    #[test]
    fn codes_name_what_they_came_from_and_nothing_else() {
        for element in all() {
            assert_eq!(WideElement::from_code(element.code()), Some(element));
        }
        let end = u32::try_from(all().len()).expect("few");
        assert_eq!(WideElement::from_code(end), None);
        assert_eq!(WideElement::from_code(u32::MAX), None);
    }

    #[test]
    fn each_element_is_changed_alone_wherever_it_lies() {
        let region = MemoryRegion::create("elements", 4096, false).expect("memory");
        for element in all() {
            let len = element.len();
            region.write(0, &[0xaa; 64]);
            let mut bytes = vec![0x11; len];
            let old = element.update(&region, len, Combine::Replace, element.bits(&bytes));
            element.write(old, &mut bytes);
            assert_eq!(bytes, vec![0xaa; len], "{element:?}");
            let mut around = vec![0; 3 * len];
            region.read(0, &mut around);
            let parts: Vec<&[u8]> = around.chunks(len).collect();
            assert!(parts[0] == bytes && parts[2] == bytes, "{element:?}");
            assert_eq!(parts[1], vec![0x11; len], "{element:?}");
            let expected = element.bits(parts[1]);
            assert_eq!(element.compare_swap(&region, len, !expected, 0), expected);
            assert_eq!(element.compare_swap(&region, len, expected, 0), expected);
            assert_eq!(element.update(&region, len, Combine::Keep, 9), 0);
        }
    }

    #[test]
    fn elements_combine_as_their_type_says() {
        let i128s = WideElement::I128;
        let minus_one = u128::MAX;
        assert_eq!(i128s.combine(Combine::Min, 3, minus_one), minus_one);
        assert_eq!(WideElement::U128.combine(Combine::Min, 3, minus_one), 3);
        assert_eq!(WideElement::U128.combine(Combine::Sum, 3, minus_one), 2);
        assert!(i128s.allows(Combine::Xor) && !i128s.allows(Combine::MinLoc));
        let floats = WideElement::Located(super::NumberType::F32);
        let bits = |value: f32, at| floats.bits(bytemuck::bytes_of(&Located::new(value, at)));
        let (near, far) = (bits(0.5, 9), bits(1.5, 2));
        assert_eq!(floats.combine(Combine::MinLoc, near, far), near);
        assert_eq!(floats.combine(Combine::MaxLoc, near, far), far);
        assert_eq!(
            floats.combine(Combine::MaxLoc, near, bits(0.5, 3)),
            bits(0.5, 3)
        );
        assert!(floats.allows(Combine::Replace) && !floats.allows(Combine::Min));
        assert_eq!((floats.len(), floats.is_in_place()), (12, false));
    }
}
