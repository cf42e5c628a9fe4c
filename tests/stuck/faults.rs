//! Each fault by which jobs hang, and the last line of its report.

use crate::{RIPSTOP, StuckJob, fits, place, roles::UNREAD, stuck};

#[test]
fn ranks_that_receive_from_each_other_in_a_ring_are_deadlocked() {
    let job = StuckJob::start(3, "recv_ring");
    let at = place("ring recv");
    let links = format!(
        "verdict: deadlock: rank 0 receives from 1 ({at}) -> rank 1 receives from 2 ({at}) -> rank 2 receives from 0 ({at})"
    );
    let text = job.report(&links, 1);
    assert!(text.starts_with("ripstop stuck: job of process "), "{text}");
    assert!(
        text.contains(", 3 ranks: nothing has begun or ended for "),
        "{text}"
    );
    assert!(
        text.contains(&format!(
            "recv from rank + 1, tag 3, communicator 0, {at}, for "
        )),
        "{text}"
    );
}

#[test]
fn long_sends_in_a_ring_are_a_deadlock() {
    let job = StuckJob::start(2, "send_ring");
    let at = place("ring send");
    job.report(
        &format!("verdict: deadlock: rank 0 sends to 1 ({at}) -> rank 1 sends to 0 ({at})"),
        1,
    );
}

#[test]
fn a_rank_that_did_not_call_a_collective_is_named() {
    let job = StuckJob::start(3, "missing_collective");
    let at = place("barrier of three");
    let text = job.report(
        &format!(
            "verdict: rank 2 has not called barrier #0 of communicator 0 ({at}); it awaits something that is not communication"
        ),
        1,
    );
    let together =
        format!("  ranks 0-1 (2 of 3) wait together: barrier #0 of communicator 0, {at}, for ");
    assert!(text.contains(&together), "{text}");
    let idle = "  rank 2: no operation in flight; it awaits something that is not communication";
    assert!(text.contains(idle), "{text}");
}

#[test]
fn a_message_without_a_receive_is_named() {
    let job = StuckJob::start(3, "missing_recv");
    let at = place("missed send");
    job.report(
        &format!(
            "verdict: no receive takes the message of rank 0 to rank 1, tag 7 (1024 KiB, {at}); rank 1 has posted none that fits"
        ),
        1,
    );
}

#[test]
fn a_receive_without_a_message_is_named() {
    let job = StuckJob::start(3, "missing_send");
    let at = place("missed recv");
    job.report(
        &format!(
            "verdict: rank 0 waits for a message of rank 1, tag 7 ({at}); rank 1 has sent it 3 (parts of collectives \
             count), all received, and awaits something that is not communication"
        ),
        1,
    );
    let (text, code) = stuck(&[&job.pid().to_string(), "--json"]);
    assert_eq!(code, Some(1));
    let of_sender = "{\"rank\":0,\"received\":0,\"sent\":3}";
    assert!(text.contains(of_sender), "no {of_sender} in {text}");
}

#[test]
fn a_message_with_another_tag_is_near_enough_to_be_named() {
    let job = StuckJob::start(3, "tag_mismatch");
    let at = place("recv of tag 9");
    let text = job.report(
        &format!(
            "verdict: tag mismatch between {at} (rank 0) and a message of rank 1: tag 9 is awaited and tag 8 was sent; 1 other \
             rank waits for rank 0"
        ),
        1,
    );
    let near = "  near miss: rank 0 waits for tag 9 from rank 1; \
                rank 1 has sent it tag 8 (1 message, 8 B), which no receive takes";
    assert!(text.contains(near), "{text}");
}

#[test]
fn a_receive_of_a_message_that_a_probe_has_reserved_is_told_so() {
    let job = StuckJob::start(2, "probed");
    let at = place("recv beside the probe");
    let text = job.report(
        &format!(
            "verdict: rank 0 waits for a message of rank 1, tag 8 ({at}), which `probe` of rank 0 has reserved: receive it by \
             `recv` or `recv_into` of what `probe` returned"
        ),
        1,
    );
    let near = "rank 1 has sent it tag 8 (1 message, 8 B), which `probe` has reserved";
    assert!(text.contains(near), "{text}");
}

#[test]
fn a_long_message_that_a_probe_has_reserved_is_told_to_its_sender() {
    let job = StuckJob::start(2, "probed_long");
    let text = job.report(
        &format!(
            "verdict: `probe` of rank 0 has reserved the message of rank 1, tag 8 (1024 KiB, {}): receive it by `recv` or \
             `recv_into` of what `probe` returned; rank 0 waits in barrier #0 of communicator 0, {}, which rank 1 has not called",
            place("send to the probe"),
            place("barrier beside the probe")
        ),
        1,
    );
    assert!(!text.contains("no receive takes"), "{text}");
    let pid = job.pid().to_string();
    let json = std::process::Command::new(RIPSTOP)
        .args(["stuck", "--json", &pid])
        .output()
        .unwrap();
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let ranks = document["jobs"][0]["ranks"].as_array().unwrap();
    let unmatched = ranks.iter().flat_map(|rank| {
        let groups = rank["view"]["unmatched"].as_array().unwrap().iter();
        groups.map(|group| (rank["rank"].clone(), group["probed"].clone()))
    });
    let unmatched: Vec<_> = unmatched.collect();
    assert_eq!(unmatched, [(0.into(), true.into())], "{document}");
}

#[test]
fn a_message_on_another_communicator_is_near_enough_to_be_named() {
    let job = StuckJob::start(2, "comm_mismatch");
    let at = place("recv on the world");
    job.report(
        &format!(
            "verdict: communicator mismatch between {at} (rank 0) and a message of rank 1: communicator 0 is awaited and * was \
             sent on"
        ),
        1,
    );
}

#[test]
fn collectives_of_two_communicators_in_two_orders_are_named() {
    let job = StuckJob::start(4, "crossed");
    job.report(
        &format!(
            "verdict: ranks 0-1 call barrier #0 of communicator * ({}) first, ranks 2-3 barrier #0 of communicator * ({}): same \
             order on all ranks",
            place("barrier of one"),
            place("barrier of the other")
        ),
        1,
    );
}

#[test]
fn a_request_that_no_rank_of_a_ring_answers_is_named() {
    let job = StuckJob::start(3, "unanswered");
    let line = place("recv of an answer");
    job.report(
        &format!(
            "verdict: deadlock: rank 0 receives from 1 ({line}) -> rank 1 receives from 2 ({line}) -> rank 2 receives from 0 \
             ({line}); rank 0 has a message of rank 2 with tag 1, which no receive takes"
        ),
        1,
    );
}

#[test]
fn lists_of_members_that_differ_are_named() {
    let job = StuckJob::start(3, "create_lists");
    let line = place("create of a list");
    job.report(
        &format!(
            "verdict: ranks 0 and 1 wait for each other in calls of `create` with different lists of ranks ({line}, {line}): all \
             members pass the same list, and await several calls in the same order"
        ),
        1,
    );
}

#[test]
fn a_rank_that_computes_is_named_with_its_last_collective() {
    let job = StuckJob::start(3, "computes");
    let at = place("last barrier");
    job.report(
        &format!(
            "verdict: rank 1 computes for * s without awaiting communication (* % of a processor), since its barrier #0, {at}, \
             ended; 2 ranks wait for it"
        ),
        1,
    );
}

#[test]
fn a_rank_without_an_agent_that_computes_is_named_too() {
    let inline = [("RIPSTOP_PROGRESS", "inline")];
    let job = StuckJob::start_with(3, "computes_inline", &[], &inline);
    job.report(
        "verdict: rank 1 computes for * s without awaiting communication (* % of a processor); 2 ranks wait for it",
        1,
    );
}

#[test]
fn messages_that_a_rank_without_an_agent_does_not_take_are_counted() {
    let inline = [("RIPSTOP_PROGRESS", "inline")];
    let job = StuckJob::start_with(3, "unread_inline", &[], &inline);
    let pattern = "verdict: rank 1 computes for * s without awaiting communication (* % of a processor); 2 ranks wait for it; * \
                   messages have come for it and no thread takes them: RIPSTOP_PROGRESS=thread would";
    let text = job.report(pattern, 1);
    let (_, rest) = text.split_once("ranks wait for it; ").unwrap();
    let count: u32 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(count <= 2 * UNREAD, "more than were sent: {text}");
}

/// The rank's thread is not the first one of its process, which waits for another thread.
#[test]
fn a_rank_that_reads_from_a_socket_is_named_with_what_its_own_thread_waits_for() {
    let job = StuckJob::start(2, "reads_a_socket");
    let pattern = format!(
        "verdict: rank 1 has not called barrier #1 of communicator 0 ({}); it sleeps outside of the runtime, waiting for a \
         socket ({SOCKET_READ}), since its barrier #0, {}, ended",
        place("barrier after something else"),
        place("barrier before something else")
    );
    job.report(&pattern, 1);
}

/// Name of the kernel's function in which a thread reads from a socket between two processes of one machine.
const SOCKET_READ: &str = "unix_stream_read_generic";

#[test]
fn a_rank_that_sleeps_briefly_in_the_runtime_again_and_again_is_not_said_to_compute() {
    // With the default, the rank spins through its sleeps.
    for variables in [&[][..], &[("RIPSTOP_SPIN_US_MAX", "0")]] {
        let job = StuckJob::start_with(2, "sleeps_briefly", &[], variables);
        let pattern = format!(
            "verdict: rank 1 has not called barrier #1 of communicator 0 ({}); it sleeps in the runtime again and again, now for \
             50µs ({}), since its barrier #0, {}, ended",
            place("barrier after something else"),
            place("sleep instead of a barrier"),
            place("barrier before something else")
        );
        for _ in 0..5 {
            job.report(&pattern, 1);
            let (text, code) = job.stuck();
            // It may get no processor for a second, and the report says so.
            assert!(!text.contains("computes"), "{text}");
            assert_eq!(code, Some(1), "{text}");
        }
    }
}

#[test]
fn a_rank_that_sleeps_long_in_the_runtime_is_named_with_the_line_of_the_sleep() {
    let job = StuckJob::start(2, "sleeps_long");
    let text = job.report(
        &format!(
            "verdict: rank 1 has not called barrier #1 of communicator 0 ({}); it awaits a sleep of 3600s in the runtime ({}), \
             since its barrier #0, {}, ended",
            place("barrier after something else"),
            place("sleep instead of a barrier"),
            place("barrier before something else")
        ),
        1,
    );
    let line = "  rank 1: no operation in flight; it awaits a sleep of 3600s in the runtime (";
    assert!(text.contains(line), "{text}");
}

#[test]
fn all_ranks_that_have_not_freed_a_window_are_named() {
    let job = StuckJob::start(4, "not_freed_by_two");
    let pattern = format!(
        "verdict: ranks 2-3 have not called free of window * of communicator 0 ({}); rank 2 awaits something that is not \
         communication",
        place("free of two ranks")
    );
    // What rank 2 did last depends on how the ranks met.
    let fits_first = |last: &str| {
        let clause = last.split_once(", since its ");
        clause.is_some_and(|(first, since)| fits(first, &pattern) && since.ends_with(", ended"))
    };
    let (text, code) = job.report_where(fits_first, &pattern);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn a_ring_that_shifts_to_the_wrong_side_is_named_with_the_messages_from_the_other_side() {
    let job = StuckJob::start(3, "wrong_side");
    let at = place("recv from the wrong side");
    job.report(
        &format!(
            "verdict: deadlock: rank 0 receives from 1 ({at}) -> rank 1 receives from 2 ({at}) -> rank 2 receives from 0 ({at}); \
             rank 0 has a message of rank 2 with tag 7, which no receive takes"
        ),
        1,
    );
}

#[test]
fn a_receive_from_the_wrong_side_is_named_with_the_message_from_the_other_side() {
    let job = StuckJob::start(4, "wrong_side_of_one");
    let wanted = format!(
        "verdict: rank 1 waits for a message of rank 2, tag 7 ({}); rank 2 has sent it none, and waits in barrier #0 of \
         communicator 0, {}, which rank 1 has not called; rank 1 has a message of rank 0 with tag 7, which no receive takes",
        place("recv from the wrong side"),
        place("barrier after what is askew")
    );
    // A part of the barrier counts, unless it has come by a slot.
    let with_part = wanted.replace("it none", "it 1 (parts of collectives count), all received");
    let (text, code) = job.report_where(|last| last == wanted || last == with_part, &wanted);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn a_sender_without_room_before_the_message_that_is_awaited_is_named() {
    let few = [("RIPSTOP_UNEXPECTED_MESSAGES", "64")];
    let job = StuckJob::start_with(2, "no_room_for_tag", &[], &few);
    job.report(
        &format!(
            "verdict: rank 1 has * unread messages of rank 0 (limit of RIPSTOP_UNEXPECTED_MESSAGES or RIPSTOP_UNEXPECTED_BYTES); \
             rank 1 waits in recv from rank 0, tag 2, communicator 0, {}",
            place("recv of what is sent last")
        ),
        1,
    );
}

#[test]
fn the_rank_that_has_sent_the_fewest_messages_is_named_to_a_receive_from_any_rank() {
    let job = StuckJob::start(4, "fewest");
    job.report(
        &format!(
            "verdict: rank 0 waits for a message of any rank, tag 1 ({}); rank 2 has sent it *, the fewest (parts of collectives \
             count), all received, and waits in barrier #0 of communicator 0, {}, which rank 0 has not called",
            place("recv from any rank"),
            place("barrier after what is askew")
        ),
        1,
    );
}

#[test]
fn a_stopped_rank_is_named_with_the_command_that_continues_it() {
    let job = StuckJob::start(3, "stopped");
    job.report(
        "verdict: rank 1 is stopped (SIGSTOP or a debugger): kill -CONT *; 2 ranks wait for it",
        1,
    );
}

#[test]
fn a_sender_without_room_is_named_with_the_unread_messages() {
    let few = [("RIPSTOP_UNEXPECTED_MESSAGES", "64")];
    let job = StuckJob::start_with(2, "no_room", &[], &few);
    job.report(
        "verdict: rank 1 has * unread messages of rank 0 (limit of RIPSTOP_UNEXPECTED_MESSAGES or RIPSTOP_UNEXPECTED_BYTES); \
         rank 1 awaits something that is not communication",
        1,
    );
}

#[test]
fn ranks_without_views_are_not_found_and_their_job_goes_on() {
    let off = [("RIPSTOP_VIEW", "off")];
    let mut job = StuckJob::start_with(2, "chaos_leave", &[], &off);
    while job.0.try_wait().unwrap().is_none() {
        let (text, code) = stuck(&[&job.pid().to_string()]);
        assert_eq!(code, Some(2), "{text}");
    }
    assert_eq!(job.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_rank_that_never_starts_is_named() {
    let job = StuckJob::start(3, "never_starts");
    job.report(
        "verdict: no process of rank 1 was found on this machine: it has not started the runtime, has RIPSTOP_VIEW=off, or \
         runs on another node; 2 ranks wait to join the job",
        1,
    );
}

#[test]
fn a_window_that_is_not_posted_is_named() {
    let job = StuckJob::start(2, "unposted");
    let at = place("start without a post");
    job.report(
        &format!(
            "verdict: rank 0 waits for rank 1 to post window * ({at}); rank 1 awaits something that is not communication"
        ),
        1,
    );
}

#[test]
fn a_window_that_one_rank_frees_and_another_one_uses_is_named() {
    let job = StuckJob::start(2, "freed_by_one");
    job.report(
        &format!(
            "verdict: rank 1 waits for rank 0 in a fence of window * ({}); rank 0 waits in free of window * of \
             communicator 0, {}, which rank 1 has not called",
            place("fence of the other rank"),
            place("free of one rank")
        ),
        1,
    );
}

#[test]
fn a_window_whose_access_is_not_completed_is_named() {
    let job = StuckJob::start(2, "uncompleted");
    let at = place("wait without a complete");
    job.report(
        &format!(
            "verdict: rank 0 waits for rank 1 to complete its accesses to window * ({at}); rank 1 awaits something that is not \
             communication"
        ),
        1,
    );
}

#[test]
fn a_lock_that_its_holder_keeps_is_named_with_the_holder() {
    let job = StuckJob::start(3, "unlocked");
    let at = place("lock that is held");
    job.report(
        &format!(
            "verdict: rank 2 waits for the lock of window * of rank 0 ({at}), which rank 1 holds; rank 1 awaits something that \
             is not communication"
        ),
        1,
    );
    let (text, code) = stuck(&[&job.pid().to_string(), "--json"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("\"holder\":1"), "{text}");
}

#[test]
fn a_holder_that_waits_for_the_rank_that_wants_its_lock_is_deadlocked_with_it() {
    let job = StuckJob::start(3, "lock_ring");
    let at = place("lock that is held");
    job.report(
        &format!(
            "verdict: deadlock: rank 1 receives from 2 ({}) -> rank 2 waits for the lock of window * of rank 0 ({at}), which \
             rank 1 holds",
            place("recv under the lock")
        ),
        1,
    );
}

#[test]
fn a_flush_that_waits_for_a_lock_is_named_with_the_holder() {
    let job = StuckJob::start(3, "flush_waits");
    let at = place("flush under a lock that waits");
    job.report(
        &format!(
            "verdict: rank 2 waits for the lock of window * of rank 0 ({at}), which rank 1 holds; rank 1 awaits something that \
             is not communication"
        ),
        1,
    );
}

#[test]
fn ranks_that_ask_each_other_why_they_wait_do_not_count_as_moving() {
    for (role, verdict) in [
        (
            "epoch_of_four",
            format!(
                "verdict: rank 2 waits for rank 0 to post window * ({}); rank 0 waits in barrier #* of communicator 0, {}, \
                 which rank 2 has not called",
                place("start that is not posted"),
                place("barrier after the epoch")
            ),
        ),
        (
            "fence_of_four",
            format!(
                "verdict: rank 0 waits for rank 3 in a fence of window * ({}); rank 3 waits in barrier #* of communicator 0, {}, \
                 which rank 0 has not called",
                place("fence of three"),
                place("barrier after the fence")
            ),
        ),
    ] {
        let job = StuckJob::start(4, role);
        job.report(&verdict, 1);
        // It asks again each second.
        for _ in 0..4 {
            let (text, code) = stuck(&[&job.pid().to_string()]);
            assert_eq!(code, Some(1), "{text}");
            assert!(!text.contains("begin and end"), "{text}");
        }
    }
}

#[test]
fn a_rank_that_awaits_a_message_of_itself_is_named() {
    let job = StuckJob::start(2, "to_itself");
    job.report(
        &format!(
            "verdict: rank 1 waits for a message of itself, tag 3 ({}), and has sent itself none that fits",
            place("recv from itself")
        ),
        1,
    );
}

#[test]
fn a_message_that_has_come_to_another_rank_is_named() {
    let job = StuckJob::start(4, "misdirected");
    job.report(
        &format!(
            "verdict: rank 3 waits for a message of rank 2, tag 3 ({}); rank 2 has sent it * (parts of collectives count), \
             all received, and waits in barrier #* of communicator 0, {}, which rank 3 has not called; a message of rank 2 \
             with tag 3 has come to rank 1 instead, and no receive takes it",
            place("recv in a half"),
            place("barrier of four")
        ),
        1,
    );
}

#[test]
fn a_job_that_awaits_no_communication_is_not_called_a_deadlock() {
    let job = StuckJob::start(2, "idle");
    job.report(
        "verdict: rank 0: no operation in flight; it awaits something that is not communication",
        1,
    );
}

#[test]
fn a_slow_job_is_not_stuck() {
    let job = StuckJob::start(2, "slow");
    let text = {
        let end = crate::now() + crate::GUARD;
        loop {
            let (text, code) = stuck(&[&job.pid().to_string()]);
            assert!(!text.contains("deadlock"), "{text}");
            // A rank that has not joined the job yet gives another sentence.
            if code == Some(0) && text.contains(" operations ended in the last ") {
                break text;
            }
            assert!(crate::now() < end, "{text}");
        }
    };
    let last = text.lines().last().unwrap();
    let (ended, rest) = last
        .strip_prefix("not stuck: ")
        .and_then(|rest| rest.split_once(" operations ended in the last "))
        .unwrap_or_else(|| panic!("{text}"));
    assert_ne!(ended, "0", "{text}");
    assert!(
        rest.contains(" s; oldest: ") || rest.ends_with(" s"),
        "{text}"
    );
}

#[test]
fn a_report_as_json_has_all_that_was_read() {
    let job = StuckJob::start(2, "recv_ring");
    job.report(
        "verdict: deadlock: rank 0 receives from 1 (tests/stuck/roles.rs:*) -> rank 1 receives from 0 (tests/stuck/roles.rs:*)",
        1,
    );
    let (text, code) = stuck(&[&job.pid().to_string(), "--json"]);
    assert_eq!(code, Some(1));
    for field in [
        "\"schema\":1",
        "\"standing\":\"deadlock\"",
        "\"what\":\"recv\"",
        "\"peer\":1",
        "\"tag\":3",
    ] {
        assert!(text.contains(field), "no {field} in {text}");
    }
}

#[test]
fn what_is_no_job_is_a_mistake_in_the_command_line() {
    let (text, code) = stuck(&["1073741824"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains(
            "no rank of a Ripstop job on this machine belongs to process or job 1073741824"
        ),
        "{text}"
    );
    let help = std::process::Command::new(RIPSTOP)
        .args(["stuck", "--help"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("ripstop stuck --all --json"));
}
