use std::time::Duration;

use super::{Board, BoardDecision, PeerState};

#[test]
fn a_board_is_found_by_its_address() {
    let board = Board::create(3).unwrap();
    let address = board.address();
    assert!(address.len() < 100 && !address.contains(' '), "{address}");
    let attached = Board::attach(&address).unwrap();
    assert_eq!(attached.size(), 3);
    board.publish_cpu(1);
    assert!(attached.cpu_of(1).is_some());
    assert_eq!(attached.cpu_of(2), None);
    assert_eq!(attached.state_of(2), PeerState::Absent);
}

#[test]
fn notes_are_read_when_all_have_left_theirs() {
    let board = Board::create(3).unwrap();
    let attached = Board::attach(&board.address()).unwrap();
    assert_eq!(
        board.wait_for_all(Duration::ZERO),
        Err(1),
        "one of two others"
    );
    board.leave_note(0, b"zero");
    board.leave_note(2, &[7; Board::NOTE_MAX]);
    assert_eq!(attached.notes(Duration::ZERO), Err(1));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| attached.notes(Duration::from_secs(60)));
        board.leave_note(1, &[0, 1]);
        let notes = reader.join().unwrap().unwrap();
        assert_eq!(
            notes,
            [b"zero".to_vec(), vec![0, 1], vec![7; Board::NOTE_MAX]]
        );
    });
}

#[test]
fn readers_do_not_wait_for_the_note_of_a_failed_rank() {
    let board = Board::create(3).unwrap();
    board.leave_note(0, b"zero");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| board.notes(Duration::from_secs(3600)));
        board.fail(1);
        assert_eq!(reader.join().unwrap(), Err(1));
    });
}

#[test]
fn notes_of_a_job_lie_behind_those_of_the_node() {
    let board = Board::create_in_job(2, 3).unwrap();
    let attached = Board::attach(&board.address()).unwrap();
    attached.leave_note(1, b"mine");
    assert_eq!(attached.notes_of_job(Duration::ZERO), Err(0));
    let notes = [vec![1], vec![2; 45], vec![3]];
    board.leave_notes_of_job(&notes);
    assert_eq!(attached.notes_of_job(Duration::ZERO).unwrap(), notes);
    assert_eq!(attached.notes(Duration::ZERO), Err(0));
}

#[test]
fn a_wrong_address_says_what_to_do() {
    let board = Board::create(2).unwrap();
    let (address, cookie) = (board.address(), format!("{:016x}", board.cookie()));
    let other_job = address.replace(&cookie, "00000000000000ff");
    let pid = std::process::id().to_string();
    let gone = address.replacen(&pid, "4194305", 1);
    let wrong = [
        ("nonsense", "one launcher"),
        (&other_job, "same build"),
        (&gone, "keep the leader alive"),
    ];
    for (address, advice) in wrong {
        let why = Board::attach(address).unwrap_err().to_string();
        assert!(why.contains(advice) && why.contains(address), "{why}");
    }
    assert!(Board::create(0).is_err());
}

#[test]
fn a_decision_is_waited_for_and_comes_with_its_marks() {
    let board = Board::create(3).unwrap();
    let attached = Board::attach(&board.address()).unwrap();
    assert_eq!(attached.decision(Duration::ZERO), None);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| attached.decision(Duration::from_secs(3600)));
        board.mark_apart(2);
        board.leave_note(0, b"elsewhere");
        board.decide(BoardDecision::Split);
        assert_eq!(waits.join().unwrap(), Some(BoardDecision::Split));
    });
    let apart = [0, 1, 2].map(|rank| attached.is_apart(rank));
    assert_eq!(apart, [false, false, true]);
    assert_eq!(attached.note_of(0), Some(b"elsewhere".to_vec()));
    assert_eq!(attached.note_of(1), None);
}
