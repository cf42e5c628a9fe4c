//! Element types of messages: the trait [`Wire`], and the type signature [`TypeSig`] that every message carries.
#![expect(
    unsafe_code,
    reason = "promises that the primitive types have no padding and no invalid bits"
)]

use std::fmt;

use crate::comm::Located;

/// A hash of a type's structure, carried in the header of every message.
///
/// The same structure has the same signature on every rank and in every build. Sizes, order and nesting count; names do
/// not. If a receive's signature differs from the sender's, the receive fails with an error instead of returning
/// garbage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeSig(pub u64);

impl TypeSig {
    /// Returns the signature of an unsigned integer of `bytes` bytes.
    #[must_use]
    pub const fn unsigned(bytes: usize) -> Self {
        Self::tagged(b'u').with_number(bytes as u64)
    }

    /// Returns the signature of a two's complement integer of `bytes` bytes.
    #[must_use]
    pub const fn signed(bytes: usize) -> Self {
        Self::tagged(b'i').with_number(bytes as u64)
    }

    /// Returns the signature of an IEEE 754 number of `bytes` bytes.
    #[must_use]
    pub const fn float(bytes: usize) -> Self {
        Self::tagged(b'f').with_number(bytes as u64)
    }

    /// The signature of an IEEE 754 number of 16 bits.
    pub(crate) const F16: Self = Self::float(2);

    /// The signature of an `f32` without the lower half of its fraction, which is no IEEE 754 number.
    pub(crate) const BF16: Self = Self::tagged(b'b').with_number(2);

    /// The signature of a byte of an encoded value, whose type the encoding does not name.
    #[cfg(feature = "serde")]
    pub(crate) const ENCODED: Self = Self::of_name("serde");

    /// Returns the signature of `len` consecutive elements of one type.
    #[must_use]
    pub const fn array(element: Self, len: usize) -> Self {
        Self::tagged(b'[')
            .with_number(element.0)
            .with_number(len as u64)
    }

    /// Returns the signature of a struct of `bytes` bytes with these fields, in declaration order.
    #[must_use]
    pub const fn structure(bytes: usize, fields: &[Self]) -> Self {
        let mut sig = Self::tagged(b'{').with_number(bytes as u64);
        let mut at = 0;
        while at < fields.len() {
            sig = sig.with_number(fields[at].0);
            at += 1;
        }
        sig.with_byte(b'}')
    }

    /// Returns the signature of a named operation instead of a type.
    pub(crate) const fn of_name(name: &str) -> Self {
        let (mut sig, mut at) = (Self::tagged(b'('), 0);
        while at < name.len() {
            sig = sig.with_byte(name.as_bytes()[at]);
            at += 1;
        }
        sig.with_byte(b')')
    }

    /// Returns the name and the size in bytes of the primitive type with this signature.
    pub(crate) fn primitive(self) -> Option<(&'static str, usize)> {
        let (_, name) = PRIMITIVES.iter().find(|(sig, _)| *sig == self)?;
        let bits = name.trim_start_matches(char::is_alphabetic);
        let bits = bits.parse::<usize>().ok()?;
        Some((name, bits / 8))
    }

    /// Returns the signature extended by another number that must agree.
    pub(crate) const fn and(self, number: u64) -> Self {
        self.with_number(number)
    }

    /// Starts a signature. It includes the byte order, so ranks of different byte order get an error instead of
    /// misreading data.
    const fn tagged(tag: u8) -> Self {
        let order = if cfg!(target_endian = "big") {
            b'>'
        } else {
            b'<'
        };
        Self(OFFSET_BASIS).with_byte(order).with_byte(tag)
    }

    const fn with_number(self, number: u64) -> Self {
        let bytes = number.to_le_bytes();
        let mut sig = self;
        let mut at = 0;
        while at < bytes.len() {
            sig = sig.with_byte(bytes[at]);
            at += 1;
        }
        sig
    }

    /// Does one step of 64-bit FNV-1a. Uses `as`, because `u64::from` is not allowed in a constant.
    const fn with_byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u64).wrapping_mul(PRIME))
    }
}

impl fmt::Debug for TypeSig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TypeSig({:#018x})", self.0)
    }
}

/// Prints the type name for a primitive type, otherwise the signature as a number.
impl fmt::Display for TypeSig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.primitive() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "type {:016x}", self.0),
        }
    }
}

/// An element type that is fully defined by its bytes: any bit pattern is valid, and there is no padding.
///
/// Derive it: `#[derive(Clone, Copy, Wire)] #[repr(C)] struct Particle { .. }`.
///
/// Numbers of other crates are `Wire` with the cargo features `num-complex` and `half`, and small matrices and vectors with
/// the feature `nalgebra`. A `bool` is not, because not every byte is one: send a `u8`. A tuple is not, because its layout
/// is not defined: send a struct.
///
/// # Safety
/// The requirements of [`bytemuck::Pod`], which it extends. `SIG` differs for types of different structure, and the
/// size of the type is not 0.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel in a message",
    label = "is not `Wire`",
    note = "numbers and arrays of them are `Wire`; for a struct of such fields use `#[derive(Clone, Copy, Wire)]` and \
            `#[repr(C)]`",
    note = "`bool` is not `Wire`, because a byte of another rank may be neither 0 nor 1: send a `u8`. A tuple has no defined \
            layout: use a struct",
    note = "types of other crates need a cargo feature of `ripstop`: `Complex` needs `num-complex`, `f16` and `bf16` need \
            `half`, small matrices need `nalgebra`; with `serde`, `send_value` sends values of any shape"
)]
pub unsafe trait Wire: bytemuck::Pod + Send + Sync {
    /// Signature of the type's structure.
    const SIG: TypeSig;
}

macro_rules! primitives {
    ($kind:ident: $($T:ty)*) => {$(
        // SAFETY: a primitive number: `Pod` says the rest, and the signature names kind and size.
        unsafe impl Wire for $T {
            const SIG: TypeSig = TypeSig::$kind(size_of::<$T>());
        }
    )*};
}

primitives!(unsigned: u8 u16 u32 u64 u128 usize);
primitives!(signed: i8 i16 i32 i64 i128 isize);
primitives!(float: f32 f64);

// SAFETY: an array of `Wire` is `Pod` and has no padding; evaluating `SIG`, which every use does, refuses size 0.
unsafe impl<T: Wire, const N: usize> Wire for [T; N] {
    const SIG: TypeSig = {
        assert!(
            N > 0,
            "an array of length 0 has no bytes to send: use another element type"
        );
        TypeSig::array(T::SIG, N)
    };
}

// SAFETY: the structure is packed, so there is no padding, and zero is a valid value of both fields.
unsafe impl<T: Wire> bytemuck::Zeroable for Located<T> {}

// SAFETY: the structure is packed, so there is no padding, and any bits are a valid value of both fields.
unsafe impl<T: Wire> bytemuck::Pod for Located<T> {}

// SAFETY: the type is `Pod` and not empty, and the signature is that of its structure.
unsafe impl<T: Wire> Wire for Located<T> {
    const SIG: TypeSig = TypeSig::structure(size_of::<Self>(), &[T::SIG, u64::SIG]);
}

const PRIMITIVES: [(TypeSig, &str); 14] = [
    (u8::SIG, "u8"),
    (u16::SIG, "u16"),
    (u32::SIG, "u32"),
    (u64::SIG, "u64"),
    (u128::SIG, "u128"),
    (i8::SIG, "i8"),
    (i16::SIG, "i16"),
    (i32::SIG, "i32"),
    (i64::SIG, "i64"),
    (i128::SIG, "i128"),
    (TypeSig::F16, "f16"),
    (TypeSig::BF16, "bf16"),
    (f32::SIG, "f32"),
    (f64::SIG, "f64"),
];

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::{PRIMITIVES, TypeSig, Wire};

    #[test]
    fn every_primitive_has_a_signature_of_its_own() {
        for (at, (sig, name)) in PRIMITIVES.iter().enumerate() {
            let twin = PRIMITIVES[..at].iter().find(|(other, _)| other == sig);
            assert_eq!(twin, None, "{name}");
        }
    }

    #[test]
    fn structure_counts_and_names_do_not() {
        assert_eq!(usize::SIG, u64::SIG);
        assert_ne!(<[f64; 1]>::SIG, f64::SIG);
        assert_ne!(<[f64; 4]>::SIG, <[[f64; 2]; 2]>::SIG);
        assert_ne!(TypeSig::structure(8, &[f64::SIG]), f64::SIG);
        let ab = TypeSig::structure(12, &[f32::SIG, f64::SIG]);
        let ba = TypeSig::structure(12, &[f64::SIG, f32::SIG]);
        assert_ne!(ab, ba);
    }

    #[test]
    fn a_signature_stays_what_it_was_in_the_last_release() {
        if cfg!(target_endian = "little") {
            assert_eq!(f64::SIG, TypeSig(SIG_OF_F64), "{:?}", f64::SIG);
        }
    }

    #[test]
    fn a_signature_prints_the_name_of_a_primitive_type() {
        assert_eq!(f64::SIG.to_string(), "f64");
        assert_eq!(TypeSig::BF16.primitive(), Some(("bf16", 2)));
        assert!(<[f64; 2]>::SIG.to_string().starts_with("type "));
    }

    const SIG_OF_F64: u64 = 0x18e0_5b8d_bfc9_4a2f;
}
