//! Options that may be written in the brackets of an attribute.

use proc_macro2::{Span, TokenStream};
use syn::{
    Attribute, Error, LitInt, LitStr, Path, Result, meta::ParseNestedMeta, parse::Parser,
    parse_quote,
};

/// Path of the module that contains `__private`.
pub(crate) struct CratePath(Path);

impl CratePath {
    fn facade() -> Self {
        Self(parse_quote!(::ripstop))
    }

    pub(crate) fn private(&self) -> Path {
        let Self(path) = self;
        parse_quote!(#path::__private)
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        self.0 = meta.value()?.parse::<LitStr>()?.parse()?;
        Ok(())
    }
}

/// The options of `#[ripstop::main]`.
pub(crate) struct MainOptions {
    pub(crate) krate: CratePath,
    /// True if the rank runs inside tokio.
    pub(crate) tokio: bool,
}

impl MainOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let mut options = Self {
            krate: CratePath::facade(),
            tokio: false,
        };
        let parser = syn::meta::parser(|meta| {
            if meta.path.is_ident("tokio") {
                options.tokio = true;
                Ok(())
            } else if meta.path.is_ident("crate") {
                options.krate.read(&meta)
            } else {
                Err(meta.error(
                    "unknown option: the only option is `tokio`; the launcher sets the number of ranks",
                ))
            }
        });
        parser.parse2(tokens)?;
        Ok(options)
    }
}

/// The options of `#[ripstop::test]`.
pub(crate) struct TestOptions {
    pub(crate) krate: CratePath,
    pub(crate) ranks: usize,
    pub(crate) processes: bool,
    /// Time limit, in seconds.
    pub(crate) timeout: Option<u64>,
    /// True if the ranks run inside tokio.
    pub(crate) tokio: bool,
}

impl TestOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let (mut krate, mut ranks, mut processes, mut timeout, mut tokio) =
            (CratePath::facade(), None, false, None, false);
        let parser = syn::meta::parser(|meta| {
            if meta.path.is_ident("ranks") {
                ranks = Some(positive(&meta, "ranks")?);
            } else if meta.path.is_ident("timeout") {
                timeout = Some(positive(&meta, "timeout")?);
            } else if meta.path.is_ident("process") {
                processes = true;
            } else if meta.path.is_ident("tokio") {
                tokio = true;
            } else if meta.path.is_ident("crate") {
                krate.read(&meta)?;
            } else {
                return Err(meta.error(
                    "unknown option: the options are `ranks = N`, `process`, `timeout = SECONDS` and `tokio`",
                ));
            }
            Ok(())
        });
        parser.parse2(tokens)?;
        let ranks = ranks.ok_or_else(|| missing_ranks("test"))?;
        let ranks = usize::try_from(ranks).map_err(|why| Error::new(Span::call_site(), why))?;
        Ok(Self {
            krate,
            ranks,
            processes,
            timeout,
            tokio,
        })
    }
}

/// The options of `#[ripstop::sim]`.
pub(crate) struct SimOptions {
    pub(crate) krate: CratePath,
    pub(crate) ranks: u32,
    pub(crate) seed: Option<u64>,
    /// Name of a preset.
    pub(crate) fabric: String,
    /// Faults in short form.
    pub(crate) faults: String,
    pub(crate) datagrams: bool,
}

impl SimOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let mut ranks = None;
        let mut options = Self {
            krate: CratePath::facade(),
            ranks: 0,
            seed: None,
            fabric: "ideal".to_owned(),
            faults: String::new(),
            datagrams: false,
        };
        let parser = syn::meta::parser(|meta| {
            if meta.path.is_ident("ranks") {
                ranks = Some(positive(&meta, "ranks")?);
            } else if meta.path.is_ident("seed") {
                options.seed = Some(meta.value()?.parse::<LitInt>()?.base10_parse()?);
            } else if meta.path.is_ident("fabric") {
                options.fabric = meta.value()?.parse::<LitStr>()?.value();
            } else if meta.path.is_ident("faults") {
                options.faults = meta.value()?.parse::<LitStr>()?.value();
            } else if meta.path.is_ident("datagrams") {
                options.datagrams = true;
            } else if meta.path.is_ident("crate") {
                options.krate.read(&meta)?;
            } else {
                return Err(meta.error(
                    "unknown option: the options are `ranks = N`, `seed = N`, `fabric = \"preset\"`, `faults = \
                     \"drop=0.3\"` and `datagrams`",
                ));
            }
            Ok(())
        });
        parser.parse2(tokens)?;
        let ranks = ranks.ok_or_else(|| missing_ranks("sim"))?;
        options.ranks = u32::try_from(ranks).map_err(|why| Error::new(Span::call_site(), why))?;
        Ok(options)
    }
}

/// The options of `#[derive(Wire)]`.
pub(crate) fn wire(attributes: &[Attribute]) -> Result<CratePath> {
    let mut krate = CratePath::facade();
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("wire"))
    {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("crate") {
                krate.read(&meta)
            } else {
                Err(meta.error("unknown option: the only option is `crate = \"path\"`"))
            }
        })?;
    }
    Ok(krate)
}

fn missing_ranks(attribute: &str) -> Error {
    let sentence =
        format!("give the number of ranks that run the test: `#[ripstop::{attribute}(ranks = 4)]`");
    Error::new(Span::call_site(), sentence)
}

fn positive(meta: &ParseNestedMeta<'_>, name: &str) -> Result<u64> {
    let number: LitInt = meta.value()?.parse()?;
    match number.base10_parse()? {
        0 => Err(Error::new(
            number.span(),
            format!("`{name} = 0`: it must be at least 1"),
        )),
        value => Ok(value),
    }
}
