//! Ranks in pods, as the book describes it: a script stands for `kubectl` and runs helpers on this machine.

use std::{fs, process::Command};

use super::{Folder, on_hosts, script};
use crate::{
    Ended, GUARD, RIPSTOP, ended,
    roles::{AS_RANK, ROLE},
};

/// What `kubectl exec` does: the words behind `--` become a process of the pod as they are, without a shell, with the variables
/// of the pod, and without input unless `-i` is there.
const KUBECTL: &str = r#"#!/bin/sh
fail() { echo "$1" >&2; exit 1; }
[ "$1" = exec ] || fail "error: unknown command \"$1\" for \"kubectl\""
shift
pod= input=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    -i) input=yes ;;
    -c) [ "$2" = rank ] || fail "error: container $2 not found"; shift ;;
    -*) fail "error: unknown flag: $1" ;;
    *) [ -z "$pod" ] || fail "error: a command without --"; pod=$1 ;;
    esac
    shift
done
[ "$1" = -- ] || fail "error: you must specify at least one command for the container"
shift
case $pod in
sim-[0-3]) ;;
*) fail "Error from server (NotFound): pods \"$pod\" not found" ;;
esac
[ -n "$input" ] || exec </dev/null
exec env -i HOSTNAME="$pod" PATH=/usr/bin:/bin "$@""#;

const PAGE: &str = include_str!("../../../book/src/kubernetes.md");
const MANIFEST: &str = include_str!("../../../book/src/kubernetes.yaml");

/// Returns a folder with the stand-in, and a `PATH` that begins with it.
fn cluster(test: &str) -> (Folder, String) {
    let folder = Folder::new(test);
    folder.program("kubectl", KUBECTL);
    let usual = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{usual}", folder.path.display());
    (folder, path)
}

/// Runs a script on pods with the starter of the page.
fn on_pods(path: &str, pods: &str, text: &str) -> Command {
    let mut command = script("kubectl exec -i -c rank %h --", pods, &[], text);
    command.env("PATH", path);
    command
}

/// Runs the command of the page that begins with these words, with a program of this test as the program.
fn as_printed(path: &str, begin: &str) -> Ended {
    let mut lines = PAGE.lines().filter_map(|line| line.strip_prefix("$ "));
    let line = lines.find(|line| line.starts_with(begin)).unwrap();
    let own = std::env::current_exe().unwrap();
    let rank = format!("{} {}", own.display(), AS_RANK.join(" "));
    let guarded = format!("{RIPSTOP} run {} --oversubscribe", GUARD.join(" "));
    let line = line.replace("ripstop run", &guarded);
    let line = line.replace("/app/my_simulation", &rank).replace(":8", "");
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env("PATH", path);
    command
        .env(ROLE, "exchange")
        .env_remove("RIPSTOP_START_WITH");
    ended(command)
}

#[test]
fn the_command_of_the_book_starts_ranks_in_its_pods() {
    let (_folder, path) = cluster("pods");
    let job = as_printed(&path, "ripstop run --hosts sim-[0-3]:8");
    job.with(0, &[]);
    for rank in 0..4 {
        job.says_once(&format!("rank {rank} of 4 (pmi-1), node [{rank}]"));
    }
}

#[test]
fn the_commands_of_the_book_name_what_its_manifests_make() {
    for made in [
        "kind: StatefulSet\nmetadata:\n  name: sim\n",
        "replicas: 4 ",
        "- name: rank\n",
        "serviceAccountName: sim-launcher\n",
        "kind: ServiceAccount\nmetadata:\n  name: sim-launcher\n",
        "resources: [\"pods/exec\"]\n    verbs: [\"create\", \"get\"]",
    ] {
        assert!(MANIFEST.contains(made), "{made}");
    }
    let job = "--hosts=sim-[0-3]:8\n            - --start-with=kubectl exec -i -c rank %h --\n";
    assert!(PAGE.contains(job), "the Job names other pods");
}

#[test]
fn arguments_and_variables_reach_pods_without_quotes() {
    let (_folder, path) = cluster("quotes");
    let words = [
        "two words",
        "a\"b",
        "it's",
        "$HOME",
        "%h",
        "",
        "\\n",
        ";reboot",
    ];
    let says = r#"printf '<%s>' "$HOSTNAME" "$ODD" "$@""#;
    let mut command = on_pods(&path, "sim-2", says);
    command
        .arg("sh")
        .args(words)
        .env("ODD", "  two 'lines'\n$(x)");
    let job = ended(command);
    let said: String = words.map(|word| format!("<{word}>")).concat();
    let expected = format!("<sim-2><  two 'lines'\n$(x)>{said}");
    assert_eq!(job.out, expected, "{}", job.err);
}

#[test]
fn a_path_with_any_letters_starts_helpers_in_pods() {
    let (folder, path) = cluster("letters");
    let strange = folder.path.join("it's $my \"tools\"");
    fs::create_dir(&strange).unwrap();
    let own = strange.join("ripstop");
    fs::hard_link(RIPSTOP, &own).unwrap();
    let mut command = Command::new(&own);
    command.args([
        "run",
        "--hosts",
        "sim-1",
        "--start-with",
        "kubectl exec -i %h --",
    ]);
    command.args(GUARD).args(["--", "echo", "here"]);
    let job = ended_on(command, &path);
    assert_eq!(job.out, "here\n", "{}", job.err);
}

fn ended_on(mut command: Command, path: &str) -> Ended {
    command.env("PATH", path);
    ended(command)
}

#[test]
fn what_breaks_is_told_as_the_book_says() {
    let (_folder, path) = cluster("breaks");
    let missing = r#"pods "sim-4" not found"#;
    let heard =
        "the launcher cannot be heard: what starts this command must pass its standard input on";
    assert!(PAGE.contains(heard) && PAGE.contains(missing));
    for (starter, pods, said) in [
        ("kubectl exec -c rank %h --", "sim-0", heard),
        (
            "kubectl exec -i -c rank %h --",
            "sim-[3-4]",
            "host sim-4: no helper there: ",
        ),
        ("kubectl exec -i -c rank %h --", "sim-[3-4]", missing),
        (
            "kubectl exec -i -c other %h --",
            "sim-1",
            "container other not found",
        ),
        ("kubectl exec -i -c rank", "sim-1", "a command without --"),
    ] {
        let mut command = on_hosts(starter, pods, &["--", "echo", "a rank runs"]);
        command.env("PATH", &path);
        let job = ended(command);
        job.with(125, &[said]);
        assert_eq!(job.out, "", "{starter}");
    }
    let quoted = on_hosts("kubectl exec -i %h -- sh -c 'x'", "sim-1", &["true"]);
    ended(quoted).with(2, &["quotes and backslashes have no meaning here"]);
}
