//! The command, as a script for the guest.

use std::{env, fmt::Write as _, path::Path};

use super::options::VmOptions;

/// Returns a script for `sh` that runs the command in the same folder and environment as here, within its time limit.
pub(super) fn script(options: &VmOptions, folder: &Path) -> String {
    let folder = folder.display().to_string();
    let inherited = env::vars().filter(|(name, _)| goes_along(name));
    let mut script = format!("cd {} || exit 125\n", quoted(&folder));
    for (name, value) in inherited.chain(options.env.iter().cloned()) {
        line(
            &mut script,
            format_args!("export {name}={}", quoted(&value)),
        );
    }
    let words: Vec<String> = options.command.iter().map(|word| quoted(word)).collect();
    let seconds = options.timeout.as_secs();
    line(
        &mut script,
        format_args!("exec timeout -k 5 {seconds} {}", words.join(" ")),
    );
    script
}

/// Returns the settings of the guest's own scripts.
pub(super) fn settings(options: &VmOptions) -> String {
    let mut settings = format!(
        "devices={}\nshape='{}'\n",
        options.devices,
        options.shape.join(" ")
    );
    for share in &options.shares {
        let share = share.display().to_string();
        line(&mut settings, format_args!("share {}", quoted(&share)));
    }
    settings
}

fn line(script: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(script, "{line}").expect("writing to a string never fails");
}

fn goes_along(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let known = NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    known && name.bytes().all(plain)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

const NAMES: [&str; 6] = ["HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TERM", "USER"];
const PREFIXES: [&str; 3] = ["CARGO", "RIPSTOP", "RUST"];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{VmOptions, goes_along, script, settings};

    #[test]
    fn every_word_reaches_the_guest_as_it_was_given() {
        let options = VmOptions {
            env: vec![("A".to_owned(), "it's $HOME".to_owned())],
            command: ["say", "", "a b", "\n"].map(str::to_owned).to_vec(),
            ..VmOptions::default()
        };
        let script = script(&options, Path::new("/x y"));
        assert!(script.starts_with("cd '/x y' || exit 125\n"), "{script}");
        assert!(script.contains("export A='it'\\''s $HOME'\n"), "{script}");
        assert!(
            script.ends_with("exec timeout -k 5 600 'say' '' 'a b' '\n'\n"),
            "{script}"
        );
    }

    #[test]
    fn only_variables_that_a_program_of_ours_needs_go_along() {
        assert!(goes_along("RIPSTOP_FABRIC") && goes_along("PATH"));
        assert!(!goes_along("SSH_AUTH_SOCK") && !goes_along("RUST FLAGS"));
    }

    #[test]
    fn settings_are_lines_of_a_script() {
        let options = VmOptions {
            shape: vec!["loss".to_owned(), "1%".to_owned()],
            shares: vec!["/a".into(), "/b c".into()],
            ..VmOptions::default()
        };
        assert_eq!(
            settings(&options),
            "devices=2\nshape='loss 1%'\nshare '/a'\nshare '/b c'\n"
        );
    }
}
