//! Expansion of `#[ripstop::main]`, `#[ripstop::test]` and `#[ripstop::sim]`: a plain function around an async one.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Error, ItemFn, Path, Result};

use crate::options;

pub(crate) fn main(options: &options::MainOptions, function: &ItemFn) -> Result<TokenStream> {
    check(function, "#[ripstop::main] async fn main(world: Comm)")?;
    if function.sig.ident != "main" {
        return Err(Error::new_spanned(
            &function.sig.ident,
            "`#[ripstop::main]` belongs on `async fn main`",
        ));
    }
    let private = options.krate.private();
    let attributes = &function.attrs;
    let inner = inner(function);
    let rank = inside(options.tokio, rank_function(function, &private), &private);
    Ok(quote! {
        #(#attributes)*
        fn main() -> ::std::process::ExitCode {
            #inner
            #private::run_main(#rank)
        }
    })
}

pub(crate) fn test(options: &options::TestOptions, function: &ItemFn) -> Result<TokenStream> {
    check(
        function,
        "#[ripstop::test(ranks = 4)] async fn name(world: Comm)",
    )?;
    let private = options.krate.private();
    let (attributes, visibility, name) = (&function.attrs, &function.vis, &function.sig.ident);
    let inner = inner(function);
    let rank = inside(options.tokio, rank_function(function, &private), &private);
    let (ranks, processes) = (options.ranks, options.processes);
    let timeout = match options.timeout {
        Some(seconds) => {
            quote!(::core::option::Option::Some(::core::time::Duration::from_secs(#seconds)))
        }
        None => quote!(::core::option::Option::None),
    };
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attributes)*
        #visibility fn #name() {
            #inner
            #private::run_test(
                #private::TestConfig {
                    ranks: #ranks,
                    processes: #processes,
                    timeout: #timeout,
                    name: ::core::concat!(::core::module_path!(), "::", ::core::stringify!(#name)),
                },
                #rank,
            )
        }
    })
}

pub(crate) fn sim(options: &options::SimOptions, function: &ItemFn) -> Result<TokenStream> {
    check(
        function,
        "#[ripstop::sim(ranks = 64)] async fn name(world: Comm)",
    )?;
    let private = options.krate.private();
    let (attributes, visibility, name) = (&function.attrs, &function.vis, &function.sig.ident);
    let inner = inner(function);
    let rank = rank_function(function, &private);
    let options::SimOptions {
        ranks,
        fabric,
        faults,
        datagrams,
        ..
    } = options;
    let seed = match options.seed {
        Some(seed) => quote!(::core::option::Option::Some(#seed)),
        None => quote!(::core::option::Option::None),
    };
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attributes)*
        #visibility fn #name() {
            #inner
            #private::run_sim(
                #private::SimTest {
                    ranks: #ranks,
                    seed: #seed,
                    fabric: #fabric,
                    faults: #faults,
                    datagrams: #datagrams,
                    name: ::core::concat!(::core::module_path!(), "::", ::core::stringify!(#name)),
                },
                #rank,
            )
        }
    })
}

/// Returns the function as written, without its attributes, which go to the outer function.
fn inner(function: &ItemFn) -> TokenStream {
    let (signature, body) = (&function.sig, &function.block);
    quote!(#signature #body)
}

/// Returns the code that is called on every rank with the world communicator. The error type is known here, and so
/// whether it has sources.
fn rank_function(function: &ItemFn, private: &Path) -> TokenStream {
    let name = &function.sig.ident;
    let called = if function.sig.inputs.is_empty() {
        quote! {
            ::core::mem::drop(world);
            let outcome = #name();
        }
    } else {
        quote!(let outcome = #name(world);)
    };
    quote!(|world: #private::Comm| async move {
        use #private::PlainOutcome as _;
        #called
        #private::ReportedOutcome(outcome.await).failure()
    })
}

/// Wraps the function in a tokio runtime, if requested.
fn inside(tokio: bool, rank: TokenStream, private: &Path) -> TokenStream {
    if tokio {
        quote!(|world: #private::Comm| #private::on_tokio!(world, #rank))
    } else {
        rank
    }
}

fn check(function: &ItemFn, example: &str) -> Result<()> {
    let signature = &function.sig;
    let wrong = |at: &dyn ToTokens, what: &str| {
        Err(Error::new_spanned(at, format!("{what}; write `{example}`")))
    };
    if signature.asyncness.is_none() {
        return wrong(&signature.fn_token, "the function must be async");
    }
    if !signature.generics.params.is_empty() {
        return wrong(
            &signature.generics,
            "the function cannot have generic parameters",
        );
    }
    if signature.inputs.len() > 1 {
        return wrong(
            &signature.inputs,
            "the function takes one argument, the world",
        );
    }
    Ok(())
}
