//! Registration of a future that is woken by events of a window.

use std::{
    fmt,
    task::{Context, Poll, ready},
};

use super::WindowEnd;
use crate::{
    buffer::Wire,
    engine::{Engine, WindowWaiterSlot},
    executor::poll_proceed,
    trace::WindowCall,
};

/// Registration of a future. Dropping it removes the registration, whether or not an event happened.
pub(super) struct WindowListener<'p, T: Wire> {
    window_end: &'p WindowEnd<T>,
    place: WindowWaiterSlot,
}

impl<'p, T: Wire> WindowListener<'p, T> {
    pub(super) const fn new(window_end: &'p WindowEnd<T>) -> Self {
        Self {
            window_end,
            place: WindowWaiterSlot::NONE,
        }
    }

    /// Returns ready with the result of `check`. Otherwise makes the driver `watch` for events, after which `check` is
    /// called again.
    pub(super) fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        call: Option<WindowCall>,
        check: impl Fn(&mut Engine) -> Option<R>,
        watch: impl FnOnce(&mut Engine),
    ) -> Poll<R> {
        ready!(poll_proceed(cx));
        let WindowEnd { comm, id, .. } = self.window_end;
        let (shared, place) = (comm.shared(), &mut self.place);
        shared.poll_window(*id, place, cx.waker(), call, check, watch)
    }
}

impl<T: Wire> WindowListener<'_, T> {
    #[cold]
    #[inline(never)]
    fn forget_taken(&mut self) {
        let (id, shared) = (self.window_end.id, self.window_end.comm.shared());
        shared.with(|engine| engine.core.windows().forget_listener(id, &mut self.place));
    }
}

impl<T: Wire> Drop for WindowListener<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.place.is_taken() {
            self.forget_taken();
        }
    }
}

impl<T: Wire> fmt::Debug for WindowListener<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}
