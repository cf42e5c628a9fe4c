//! Layouts of arrays, messages of them, and the exchange of ghosts, each compared with a plain loop over indices.
#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "seeds help to reproduce a failure; ranks and counts in tests are small"
)]

#[path = "../support/content.rs"]
mod content;
mod halo;
mod in_place;
mod in_place_uses;
mod layouts;
mod packed;

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::Once,
};

/// Returns the text of the panic in `call`, and the line that it names, which must be in `file`.
fn panics(file: &str, call: impl FnOnce()) -> (String, u32) {
    thread_local! {
        static PLACE: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PLACE.set(info.location().map(|at| (at.file().to_owned(), at.line())));
            before(info);
        }));
    });
    let panicked = catch_unwind(AssertUnwindSafe(call)).expect_err("it panics");
    let text = panicked.downcast::<String>().map(|text| *text);
    let (named, line) = PLACE.take().expect("the place of the panic");
    assert_eq!(named, file);
    (text.unwrap_or_default(), line)
}
