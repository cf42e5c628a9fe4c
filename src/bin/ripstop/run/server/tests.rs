use super::*;

fn server(ranks: u32) -> PmiServer {
    PmiServer::new(ranks, "kvs".to_owned(), false)
}

fn ask(server: &mut PmiServer, rank: u32, line: &str) -> String {
    match server.handle_line(rank, line.as_bytes()).as_slice() {
        [PmiEffect::Answer { line, .. }] => line.trim_end().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn out(rank: u32) -> PmiEffect {
    PmiEffect::Answer {
        rank,
        line: "cmd=barrier_out rc=0\n".to_owned(),
    }
}

#[test]
fn a_put_can_be_read_after_the_barrier_and_not_before() {
    let mut server = server(2);
    assert_eq!(
        ask(&mut server, 0, "cmd=put kvsname=kvs key=a value=x=1"),
        "cmd=put_result rc=0 msg=success"
    );
    assert!(ask(&mut server, 0, "cmd=get kvsname=kvs key=a").contains("rc=-1"));
    assert_eq!(server.handle_line(1, b"cmd=barrier_in"), []);
    assert_eq!(server.handle_line(0, b"cmd=barrier_in"), [out(0), out(1)]);
    assert_eq!(
        ask(&mut server, 1, "cmd=get kvsname=kvs key=a"),
        "cmd=get_result rc=0 msg=success value=x=1"
    );
    assert!(ask(&mut server, 1, "cmd=get kvsname=other key=a").contains("rc=-1"));
}

#[test]
fn the_questions_of_a_start_are_answered() {
    let mut server = server(3);
    assert!(!server.joined());
    assert!(
        ask(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0")
            .contains("rc=-1 pmi_version=1")
    );
    assert!(ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").contains("rc=0"));
    assert!(server.joined());
    assert!(ask(&mut server, 0, "cmd=get_maxes").contains("keylen_max=64"));
    assert!(ask(&mut server, 0, "cmd=get_universe_size").ends_with("size=3"));
    assert!(ask(&mut server, 0, "cmd=get_appnum").ends_with("appnum=0"));
    server.number_programs([1, 1].into_iter());
    assert!(ask(&mut server, 1, "cmd=get_appnum").ends_with("appnum=1"));
    assert!(ask(&mut server, 0, "cmd=get_my_kvsname").ends_with("kvsname=kvs"));
    assert!(
        ask(
            &mut server,
            0,
            "cmd=get kvsname=kvs key=PMI_process_mapping"
        )
        .ends_with("value=(vector,(0,1,3))")
    );
    assert!(ask(&mut server, 0, "cmd=spawn").contains("rc=-1"));
    assert_eq!(ask(&mut server, 0, "cmd=finalize"), "cmd=finalize_ack rc=0");
}

#[test]
fn a_leaving_rank_is_named_to_the_waiting_ranks() {
    let mut server = server(3);
    server.handle_line(0, b"cmd=barrier_in");
    assert_eq!(server.find_desertion(), None);
    server.handle_line(1, b"cmd=finalize");
    server.leave(1, "exited with code 0");
    let expected = BarrierDesertion {
        rank: 1,
        how: "finalized".to_owned(),
        waiting: vec![0],
    };
    assert_eq!(server.find_desertion(), Some(expected));
}

#[test]
fn survivors_that_are_kept_going_wait_only_for_each_other() {
    let mut server = PmiServer::new(3, "kvs".to_owned(), true);
    server.handle_line(0, b"cmd=barrier_in");
    server.handle_line(2, b"cmd=barrier_in");
    assert_eq!(server.leave(1, "was killed"), [out(0), out(2)]);
    assert_eq!(server.find_desertion(), None);
}

#[test]
fn an_abort_brings_its_code_and_its_reason() {
    let aborted = |line: &str| server(1).handle_line(0, line.as_bytes()).remove(0);
    assert_eq!(
        aborted("cmd=abort exitcode=3 why=6e6f"),
        PmiEffect::Abort {
            rank: 0,
            code: 3,
            why: "no".to_owned()
        }
    );
    assert_eq!(
        aborted("cmd=abort"),
        PmiEffect::Abort {
            rank: 0,
            code: 1,
            why: String::new()
        }
    );
    assert_eq!(
        aborted("cmd=abort why=0x+é"),
        PmiEffect::Abort {
            rank: 0,
            code: 1,
            why: String::new()
        }
    );
}

#[test]
fn nonsense_is_shown_not_believed() {
    for bytes in [&b"hello"[..], b"\xff\xfe", b"mcmd=spawn"] {
        assert!(matches!(
            server(1).handle_line(0, bytes).as_slice(),
            [PmiEffect::Garbled { .. }]
        ));
    }
    let mut server = server(2);
    server.handle_line(0, b"cmd=barrier_in");
    assert!(matches!(
        server.handle_line(0, b"cmd=barrier_in").as_slice(),
        [PmiEffect::Garbled { .. }]
    ));
    assert!(ask(&mut server, 1, "cmd=put key=a").contains("rc=-1"));
}

#[test]
fn a_report_is_passed_on_without_an_answer_and_a_bad_one_is_garbled() {
    let mut server = server(2);
    assert!(ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").contains("reports=1"));
    let why = "recv".to_owned();
    let report = FailureReport::GivesUp { why };
    let line = report.line();
    let effects = server.handle_line(1, line.trim_end().as_bytes());
    assert_eq!(effects, [PmiEffect::Reported { rank: 1, report }]);
    let effects = server.handle_line(1, b"cmd=blames rank=x");
    assert!(matches!(effects.as_slice(), [PmiEffect::Garbled { .. }]));
}

#[test]
fn no_line_makes_the_server_panic() {
    let commands = [
        "blames",
        "panicked",
        "gives_up",
        "init",
        "put",
        "get",
        "barrier_in",
        "abort",
        "finalize",
        "",
        "x",
    ];
    let mut state = 7_u32; // The seed.
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    for command in commands.iter().cycle().take(4000) {
        let mut line = format!("cmd={command} kvsname=kvs ").into_bytes();
        line.extend((0..noise() % 40).map(|_| noise()));
        let mut server = server(2);
        server.handle_line(0, &line);
        server.handle_line(1, &line[4..]);
        server.leave(0, "ended");
    }
}
