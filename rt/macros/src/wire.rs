//! Expansion of `#[derive(Wire)]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Data, DeriveInput, Error, Fields, Result, Type, spanned::Spanned};

use crate::options;

pub(crate) fn derive(item: &DeriveInput) -> Result<TokenStream> {
    let private = options::wire(&item.attrs)?.private();
    let fields = field_types(item)?;
    check_repr(item)?;
    check_generics(item)?;
    let name = &item.ident;
    let padded = format!(
        "`{name}` has padding: give every byte a name, with fields in descending alignment or an explicit `_pad: [u8; N]`"
    );
    let signatures = fields
        .iter()
        .map(|ty| quote_spanned!(ty.span()=> <#ty as #private::Wire>::SIG));
    Ok(quote! {
        const _: () = ::core::assert!(
            ::core::mem::size_of::<#name>() == 0 #(+ ::core::mem::size_of::<#fields>())*,
            #padded,
        );
        // SAFETY: all fields are `Wire` (the signature below asks each for its own), so zero is a value of each.
        unsafe impl #private::bytemuck::Zeroable for #name {}
        // SAFETY: all fields are `Wire`, the layout is the declared one, and there is no padding (asserted above).
        unsafe impl #private::bytemuck::Pod for #name {}
        // SAFETY: the type is `Pod`, not empty, and the signature is that of its structure.
        unsafe impl #private::Wire for #name {
            const SIG: #private::TypeSig =
                #private::TypeSig::structure(::core::mem::size_of::<Self>(), &[#(#signatures),*]);
        }
    })
}

/// Returns the error, together with an implementation. Without one, every use of the type would cause another error.
pub(crate) fn refuse(item: &DeriveInput, error: &Error) -> TokenStream {
    let error = error.to_compile_error();
    let Ok(options) = options::wire(&item.attrs) else {
        return error;
    };
    if !item.generics.params.is_empty() {
        return error;
    }
    let (private, name) = (options.private(), &item.ident);
    quote! {
        #error
        // SAFETY: code that contains this does not compile.
        unsafe impl #private::bytemuck::Zeroable for #name {}
        // SAFETY: code that contains this does not compile.
        unsafe impl #private::bytemuck::Pod for #name {}
        // SAFETY: code that contains this does not compile.
        unsafe impl #private::Wire for #name {
            const SIG: #private::TypeSig = #private::TypeSig::unsigned(1);
        }
    }
}

fn field_types(item: &DeriveInput) -> Result<Vec<&Type>> {
    let Data::Struct(data) = &item.data else {
        return Err(Error::new_spanned(
            &item.ident,
            "only a struct can be `Wire`: not every bit pattern is a value of an enum; send its number instead",
        ));
    };
    if matches!(data.fields, Fields::Unit) || data.fields.is_empty() {
        return Err(Error::new_spanned(
            &item.ident,
            "a struct without fields has no bytes to send",
        ));
    }
    Ok(data.fields.iter().map(|field| &field.ty).collect())
}

fn check_repr(item: &DeriveInput) -> Result<()> {
    let mut fixed = false;
    for attribute in item
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("repr"))
    {
        attribute.parse_nested_meta(|meta| {
            fixed |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
            if meta.input.peek(syn::token::Paren) {
                let argument;
                syn::parenthesized!(argument in meta.input);
                argument.parse::<TokenStream>()?;
            }
            Ok(())
        })?;
    }
    if fixed {
        return Ok(());
    }
    let advice = format!(
        "`{}` needs `#[repr(C)]`: without it, ranks need not agree on the order of its fields",
        item.ident
    );
    Err(Error::new_spanned(&item.ident, advice))
}

fn check_generics(item: &DeriveInput) -> Result<()> {
    if item.generics.params.is_empty() {
        return Ok(());
    }
    let advice =
        "a generic struct cannot derive `Wire`: whether it has padding depends on its parameters";
    Err(Error::new_spanned(&item.generics, advice))
}
