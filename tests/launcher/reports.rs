//! Tests with ranks also blame the rank that failed first, and point to the test.

use std::{io, panic, sync::Mutex};

use ripstop::{Collectives, Comm, Error};

#[ripstop::test(ranks = 4)]
#[should_panic(expected = "the cause")]
async fn a_panic_of_a_thread_is_the_panic_of_the_test(world: Comm) {
    assert!(world.rank() != 2, "the cause");
    world.barrier().await.unwrap();
}

#[ripstop::test(ranks = 4)]
#[should_panic(expected = "rank 2: the cause")]
async fn an_error_of_a_thread_is_the_panic_of_the_test(
    world: Comm,
) -> Result<(), Box<dyn std::error::Error>> {
    if world.rank() == 2 {
        return Err(Box::new(io::Error::other("the cause")));
    }
    world.barrier().await?;
    Ok(())
}

#[ripstop::test(ranks = 4, process)]
#[should_panic(
    expected = "rank 2 of reports::a_panic_of_a_process_is_reported_with_what_it_said: exit status: 101"
)]
async fn a_panic_of_a_process_is_reported_with_what_it_said(world: Comm) {
    assert!(world.rank() != 2, "the cause");
    world.barrier().await.unwrap();
}

#[ripstop::test(ranks = 4, process)]
#[should_panic(
    expected = "rank 2 of reports::an_end_of_a_process_is_reported_with_its_code: exit status: 3"
)]
async fn an_end_of_a_process_is_reported_with_its_code(world: Comm) -> Result<(), Error> {
    if world.rank() == 2 {
        std::process::exit(3);
    }
    world.barrier().await
}

/// Returns the place of the last panic on this thread.
static PANICKED_AT: Mutex<String> = Mutex::new(String::new());

#[test]
fn a_failure_points_to_the_line_of_the_test() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.contains("where is this") {
            *PANICKED_AT.lock().unwrap() = panic.location().unwrap().to_string();
        } else {
            before(panic);
        }
    }));
    let failing = || {
        ripstop::__private::run_test(
            ripstop::__private::TestConfig {
                ranks: 2,
                processes: false,
                timeout: None,
                name: "launcher::reports::failing",
            },
            |_: Comm| async { Err::<(), _>("where is this") },
        );
    };
    panic::catch_unwind(failing).unwrap_err();
    let at = PANICKED_AT.lock().unwrap().clone();
    assert!(at.starts_with("tests/launcher/reports.rs:"), "{at}");
}
