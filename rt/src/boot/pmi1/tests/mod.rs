mod flux;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};
use rustix::io::{FdFlags, fcntl_setfd};

use super::*;
use crate::boot::discover;

/// Returns the environment of rank `rank` of `size`, whose launcher is the other end of `socket`.
fn environment(socket: &UnixStream, rank: u32, size: u32) -> Environment {
    environment_below(socket, rank, size, [])
}

/// Same, with variables left by another launcher further up.
fn environment_below<const N: usize>(
    socket: &UnixStream,
    rank: u32,
    size: u32,
    left: [(&str, String); N],
) -> Environment {
    fcntl_setfd(socket, FdFlags::empty()).unwrap();
    let variables = [
        ("PMI_FD", socket.as_raw_fd().to_string()),
        ("PMI_RANK", rank.to_string()),
        ("PMI_SIZE", size.to_string()),
        ("RIPSTOP_BOOT_TIMEOUT", "5".to_owned()),
    ];
    variables.into_iter().chain(left).collect()
}

/// Answers each request with the next of `answers`, then closes the connection. Returns the requests.
fn server(socket: UnixStream, answers: &[&str]) -> JoinHandle<Vec<String>> {
    let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
        let mut asked = Vec::new();
        for answer in answers {
            let Some(Ok(line)) = lines.next() else { break };
            asked.push(line);
            (&socket).write_all(answer.as_bytes()).unwrap();
        }
        asked
    })
}

const GREETING: [&str; 3] = [
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
    "cmd=my_kvsname kvsname=kvs_1_host\n",
];

fn against(answers: &[&str], size: u32) -> Result<Boot, BootError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = server(theirs, answers);
    let boot = discover(&environment(&ours, 0, size));
    drop(ours);
    drop(server); // Ends after its last answer, or when our connection closes.
    boot
}

#[test]
fn a_rank_learns_its_node_from_the_mapping() {
    let mut answers = GREETING.to_vec();
    answers.push("cmd=get_result rc=0 msg=success value=(vector,(0,1,3),(1,1,1))\n");
    let boot = against(&answers, 4).unwrap();
    assert_eq!((boot.rank, boot.size, boot.found), (0, 4, "pmi-1"));
    assert_eq!(boot.node.ranks, [0, 1, 2]);
}

#[test]
fn a_variable_of_another_launcher_is_not_read_where_it_does_not_count() {
    let garbage = || [("MPI_LOCALNRANKS", "many".to_owned())];
    let mut answers = GREETING.to_vec();
    answers.push("cmd=get_result rc=0 msg=success value=(vector,(0,1,3),(1,1,1))\n");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _server = server(theirs, &answers);
    let boot = discover(&environment_below(&ours, 0, 4, garbage())).unwrap();
    assert_eq!(boot.node.ranks, [0, 1, 2]);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _server = server(theirs, &GREETING);
    let alone = discover(&environment_below(&ours, 0, 1, garbage())).unwrap();
    assert_eq!(alone.node, Node::only(1));
}

#[test]
fn without_a_mapping_the_ranks_tell_each_other_their_machine() {
    let here = machine().unwrap();
    let mine = format!("cmd=get_result rc=0 value={}:{here}\n", here.len());
    let mut answers = GREETING.to_vec();
    answers.extend([
        "cmd=get_result rc=1\n",
        "cmd=put_result rc=0\n",
        "cmd=barrier_out\n",
    ]);
    answers.extend([
        mine.as_str(),
        "cmd=get_result rc=0 value=9:elsewhere\n",
        mine.as_str(),
    ]);
    assert_eq!(against(&answers, 3).unwrap().node.ranks, [0, 2]);
}

#[test]
fn a_server_that_loses_where_ranks_are_is_an_error_that_names_the_key() {
    let here = machine().unwrap();
    let mine = format!("cmd=get_result rc=0 value={}:{here}\n", here.len());
    let (lost, other) = (
        "cmd=get_result rc=-1\n",
        "cmd=get_result rc=0 value=9:elsewhere\n",
    );
    for (found, key) in [
        ([lost, lost], "ripstop-machine-0"),
        ([lost, &mine], "ripstop-machine-0"),
        ([other, &mine], "ripstop-machine-0"),
        ([&mine, lost], "ripstop-machine-1"),
    ] {
        let mut answers = GREETING.to_vec();
        answers.extend([lost, "cmd=put_result rc=0\n", "cmd=barrier_out\n"]);
        answers.extend(found);
        match against(&answers, 2) {
            Err(BootError::Garbled { request, .. }) => assert_eq!(request, format!("get {key}")),
            other => panic!("{found:?}: {other:?}"),
        }
    }
}

#[test]
fn a_launcher_below_ours_is_not_taken_for_ours() {
    let (above, _launcher) = UnixStream::pair().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let left = [
        ("RIPSTOP_LAUNCHER", wire::connection(fd, &above).unwrap()),
        ("MPI_LOCALNRANKS", "2".to_owned()),
    ];
    let server = std::thread::spawn(move || {
        let here = machine().unwrap();
        let mine = format!("cmd=get_result rc=0 value={}:{here}\n", here.len());
        let rest = [
            "cmd=get_result rc=-1\n",
            "cmd=put_result rc=0\n",
            "cmd=barrier_out rc=0\n",
            mine.as_str(),
            "cmd=get_result rc=0 value=7:another\n",
        ];
        for answer in GREETING.into_iter().chain(rest) {
            let mut request = [0; wire::REQUEST_MAX];
            let len = (&theirs).read(&mut request).unwrap();
            let lines = request[..len].iter().filter(|&&byte| byte == b'\n');
            assert_eq!(lines.count(), 1, "it reads one request at a time");
            (&theirs).write_all(answer.as_bytes()).unwrap();
        }
    });
    let environment = environment_below(&ours, 0, 2, left);
    let boot = discover(&environment);
    drop(ours);
    server.join().unwrap();
    let ranks = boot.unwrap().node.ranks;
    assert_eq!(ranks, [0], "the ranks above share a node, not these");
}

#[test]
fn a_launcher_below_one_of_pmix_is_the_one_that_counts() {
    let pmix = [("PMIX_NAMESPACE", "above"), ("PMIX_RANK", "0")];
    let pmix = pmix.map(|(name, value)| (name, value.to_owned()));
    let mut answers = GREETING.to_vec();
    answers.push("cmd=get_result rc=0 value=(vector,(0,1,2))\n");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _server = server(theirs, &answers);
    let boot = discover(&environment_below(&ours, 1, 2, pmix)).unwrap();
    assert_eq!((boot.rank, boot.size, boot.found), (1, 2, "pmi-1"));
}

#[test]
fn one_rank_below_a_launcher_of_several_is_not_taken_for_the_job() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _server = server(theirs, &GREETING);
    let left = [("OMPI_COMM_WORLD_SIZE", "4".to_owned())];
    let error = discover(&environment_below(&ours, 0, 1, left)).unwrap_err();
    assert!(matches!(error, BootError::WrongLauncher { .. }), "{error}");
}

#[test]
fn our_launcher_is_known_by_its_connection() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let own = wire::connection(ours.as_raw_fd(), &ours).unwrap();
    let server = server(theirs, &GREETING);
    let of_ours = [
        ("RIPSTOP_LAUNCHER", own),
        ("MPI_LOCALNRANKS", "2".to_owned()),
    ];
    let boot = discover(&environment_below(&ours, 0, 2, of_ours)).unwrap();
    assert_eq!(boot.node, Node::only(2), "without a question");
    assert_eq!(server.join().unwrap().len(), GREETING.len());
}

#[test]
fn our_launcher_is_asked_for_the_nodes_of_a_job_on_several_hosts() {
    let mut answers = GREETING.to_vec();
    answers.push("cmd=get_result rc=0 msg=success value=(vector,(0,2,2))\n");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let own = wire::connection(ours.as_raw_fd(), &ours).unwrap();
    let _server = server(theirs, &answers);
    let of_ours = [
        ("RIPSTOP_LAUNCHER", own),
        ("MPI_LOCALNRANKS", "2".to_owned()),
    ];
    let boot = discover(&environment_below(&ours, 3, 4, of_ours)).unwrap();
    assert_eq!(boot.node.ranks, [2, 3]);
}

#[test]
fn no_request_is_longer_than_every_server_takes() {
    let space = format!("cmd=my_kvsname kvsname={}\n", "s".repeat(200));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut answers = GREETING.to_vec();
    answers[2] = &space;
    answers.extend(["cmd=put_result rc=0\n"; 3]);
    let server = server(theirs, &answers);
    let mut boot = discover(&environment(&ours, 0, 1)).unwrap();
    boot.exchange
        .put(&"k".repeat(48), &"v".repeat(2000))
        .unwrap();
    let asked = server.join().unwrap();
    assert_eq!(asked.len(), answers.len());
    assert!(
        asked.iter().all(|line| line.len() < wire::REQUEST_MAX),
        "{:?}",
        asked.iter().map(String::len).max()
    );
}

#[test]
fn a_missing_key_is_none_even_with_a_value() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut answers = GREETING.to_vec();
    answers.push("cmd=get_result rc=-1 msg=key_k_not_found value=unknown\n");
    let server = server(theirs, &answers);
    let mut boot = discover(&environment(&ours, 0, 1)).unwrap();
    assert_eq!(boot.exchange.get(0, "k").unwrap(), None);
    assert_eq!(
        server.join().unwrap()[3],
        "cmd=get kvsname=kvs_1_host key=k"
    );
}

#[test]
fn a_server_that_answers_nonsense_is_an_error_that_shows_it() {
    let cases: [(&[&str], &str); 8] = [
        (&["hello\n"], "has no cmd="),
        (&["cmd=response_to_init rc=-1\n"], "refused"),
        (
            &["cmd=response_to_init pmi_version=2 rc=0\n"],
            "speaks PMI-1",
        ),
        (&["cmd=barrier_out rc=0\n"], "expected cmd=response_to_init"),
        (
            &[GREETING[0], "cmd=maxes keylen_max=64\n"],
            "vallen_max is not a number",
        ),
        (
            &[GREETING[0], "cmd=maxes keylen_max=64 vallen_max=3\n"],
            "is too small",
        ),
        (
            &[GREETING[0], GREETING[1], "cmd=my_kvsname\n"],
            "has no kvsname",
        ),
        (
            &[
                GREETING[0],
                GREETING[1],
                GREETING[2],
                "cmd=get_result rc=0 value=(vector,(x\n",
            ],
            "not closed",
        ),
    ];
    for (answers, expected) in cases {
        let error = against(answers, 2).unwrap_err().to_string();
        assert!(error.contains(expected), "{answers:?}: {error}");
    }
}

#[test]
fn a_server_that_hangs_up_is_gone_and_stays_gone() {
    assert!(matches!(
        against(&GREETING[..1], 2),
        Err(BootError::LauncherGone { .. })
    ));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = server(theirs, &GREETING);
    let mut boot = discover(&environment(&ours, 0, 1)).unwrap();
    server.join().unwrap();
    assert!(matches!(
        boot.exchange.fence(),
        Err(BootError::LauncherGone { .. })
    ));
    assert!(
        matches!(boot.exchange.fence(), Err(BootError::Over)),
        "a late answer must not fit another request"
    );
}

#[test]
fn a_silent_server_is_given_up() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut stream = Pmi1Stream::new(ours.into(), Duration::from_millis(20));
    assert!(matches!(
        stream.request("cmd=init\n"),
        Err(BootError::Silent { .. })
    ));
}

#[test]
fn a_line_without_end_is_given_up() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&[b'x'; 5000]).unwrap();
    let mut stream = Pmi1Stream::new(ours.into(), Duration::from_secs(60));
    assert!(matches!(
        stream.request("cmd=init\n"),
        Err(BootError::Garbled { .. })
    ));
}

#[test]
fn an_abort_tells_a_foreign_launcher_nothing_it_does_not_know() {
    for (ours, expected) in [
        (false, "cmd=abort exitcode=3\n"),
        (true, "cmd=abort exitcode=3 why=6e6f\n"),
    ] {
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        let stream = Pmi1Stream::new(socket.into(), Duration::from_secs(60));
        let mut client = Pmi1Client {
            stream,
            space: "k".to_owned(),
            key_max: 63,
            value_max: 1023,
            ours,
            hears: false,
            ahead: 0,
            over: false,
        };
        client.abort(3, "no");
        drop(client);
        let mut told = String::new();
        theirs.read_to_string(&mut told).unwrap();
        assert_eq!(told, expected);
    }
}

/// A pattern of valid and nearly valid answers.
const ANSWER: &str = "(cmd=(get_result|put_result|barrier_out|finalize_ack))?( rc=-?[0-9]{1,3})?\
                      ( value=[0-9]{0,3}:?[a-z]{0,9})?\n?";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_server_makes_a_rank_panic(good in 0_usize..4, noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(GREETING[..good.min(3)].concat().as_bytes()).unwrap();
        theirs.write_all(&noise).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        prop_assert!(discover(&environment(&ours, 0, 2)).is_err());
    }

    #[test]
    fn no_answer_makes_an_exchange_panic(answer in ANSWER) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(GREETING.concat().as_bytes()).unwrap();
        for _ in 0..4 {
            theirs.write_all(answer.as_bytes()).unwrap();
        }
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let mut boot = discover(&environment(&ours, 0, 1)).unwrap();
        let _ = (boot.exchange.get(0, "k"), boot.exchange.put("k", "v"), boot.exchange.fence(), boot.exchange.finalize());
    }
}
