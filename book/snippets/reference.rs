//! The tables of the book's reference are made from the tables in the code, and the help from the command. `UPDATE_BOOK=1`
//! writes them.

use std::{env, fs, path::PathBuf};

use ripstop::settings::{SettingSource, Settings};

#[test]
fn the_page_of_settings_has_the_table_of_the_runtime() {
    let mut table = "| variable | default | values | meaning |\n|---|---|---|---|\n".to_owned();
    for row in Settings::new().rows() {
        assert_eq!(row.source, SettingSource::Default, "{}", row.name);
        let [value, range] = [row.value.as_str(), row.range].map(|text| text.replace('|', "\\|"));
        let value = if value.is_empty() {
            value
        } else {
            format!("`{value}`")
        };
        let cells = [&format!("`{}`", row.name), &value, &range, row.meaning];
        table += &format!("| {} |\n", cells.join(" | "));
    }
    compare("settings.md", &table);
}

#[test]
fn the_page_of_errors_has_all_kinds_with_their_documentation() {
    let source = include_str!("../../rt/src/error.rs");
    let (_, kinds) = source
        .split_once("pub enum ErrorKind {\n")
        .expect("the enum of kinds");
    let (kinds, _) = kinds.split_once("\n}\n").expect("the end of the enum");
    let mut table = "| kind | cause, and what to do |\n|---|---|\n".to_owned();
    let mut text = Vec::new();
    for line in kinds.lines().filter_map(|line| line.strip_prefix("    ")) {
        if let Some(part) = line.strip_prefix("/// ") {
            text.push(part);
        } else if line.starts_with(char::is_uppercase) {
            let name: String = line.chars().take_while(|c| c.is_alphanumeric()).collect();
            table += &format!("| `{name}` | {} |\n", unlinked(&text.join(" ")));
            text.clear();
        }
    }
    compare("errors.md", &table);
}

#[cfg(feature = "cli")]
#[test]
fn the_page_of_the_command_has_the_help_of_each_subcommand() {
    let mut page = String::new();
    push_help(&mut page, &[]);
    compare("commands.md", page.trim_start());
}

#[cfg(feature = "cli")]
#[test]
fn the_page_of_the_doctor_names_the_checks_that_it_makes() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ripstop"));
    let output = command.args(["doctor", "--json"]).output();
    let output = output.expect("starting the command");
    let report = String::from_utf8(output.stdout).expect("a report is UTF-8");
    let made = report.split(r#""check":""#).skip(1);
    let made = made.filter_map(|rest| rest.split('"').next());
    let made: std::collections::BTreeSet<&str> = made.collect();
    let page = include_str!("../src/doctor.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let checks = rows.filter_map(|row| row.split_once(" |"));
    let named = checks.flat_map(|(cell, _)| cell.split(", "));
    let named = named.map(|name| name.trim_matches('`'));
    let named = named.filter(|name| name.contains('.')).collect();
    assert_eq!(made, named);
}

/// Appends the help of a command, and then that of its subcommands.
#[cfg(feature = "cli")]
fn push_help(page: &mut String, names: &[&str]) {
    let help = help_of(names);
    let call = [&["ripstop"], names].concat().join(" ");
    let level = "#".repeat(names.len() + 2);
    // Examples stay as they are, so that they can be copied.
    let (options, examples) = help.split_at(help.find("\nExamples:\n").unwrap_or(help.len()));
    let text: String = options.lines().map(wrapped).collect();
    let text = text + examples;
    *page += &format!("\n{level} {call}\n\n```text\n{}\n```\n", text.trim_end());
    for name in subcommands(&help) {
        push_help(page, &[names, &[name]].concat());
    }
}

#[cfg(feature = "cli")]
fn help_of(names: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ripstop"));
    let output = command.args(names).arg("--help").output();
    let output = output.expect("starting the command");
    assert!(output.status.success(), "{names:?}: {output:?}");
    String::from_utf8(output.stdout).expect("help is UTF-8")
}

/// Breaks a line of a help text so that it fits on a page. Its further lines begin below its description.
#[cfg(feature = "cli")]
fn wrapped(line: &str) -> String {
    const COLUMNS: usize = 86;
    let line = line.trim_end();
    let text = line.trim_start();
    let margin = line.len() - text.len();
    let indent = match text.split_once("  ") {
        Some((name, description)) if margin > 0 => {
            margin + name.len() + 2 + description.len() - description.trim_start().len()
        }
        _ => margin,
    };
    let mut lines = String::new();
    let mut column = margin;
    lines += &line[..margin];
    for word in text.split_inclusive(' ') {
        if column + word.trim_end().chars().count() > COLUMNS {
            lines.truncate(lines.trim_end().len());
            lines += &format!("\n{:indent$}", "");
            column = indent;
        }
        lines += word;
        column += word.chars().count();
    }
    lines + "\n"
}

/// Returns the names in the list of commands of a help text.
#[cfg(feature = "cli")]
fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let list = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, list)| list);
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    names.filter(|name| *name != "help")
}

/// Leaves the words of a link to an item of the code, and drops the link.
fn unlinked(text: &str) -> String {
    let parts = text.split("](crate::").enumerate();
    let words = parts.map(|(index, part)| match part.split_once(')') {
        Some((_, after)) if index > 0 => after,
        _ => part,
    });
    words.collect::<String>().replace("[`", "`")
}

/// Compares the part of a page between its two marks with the table.
pub(super) fn compare(page: &str, table: &str) {
    const MARKS: [&str; 2] = ["<!-- made from the code -->\n", "<!-- end -->\n"];
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("book/src")
        .join(page);
    let text = fs::read_to_string(&file).expect("a page of the book");
    let (before, rest) = text.split_once(MARKS[0]).expect("the first mark");
    let (old, after) = rest.split_once(MARKS[1]).expect("the second mark");
    let new = format!("\n{table}\n");
    if env::var_os("UPDATE_BOOK").is_some() {
        let whole = [before, MARKS[0], &new, MARKS[1], after].concat();
        fs::write(&file, whole).expect("writing the page");
    } else {
        assert_eq!(
            old, new,
            "{page}: run `UPDATE_BOOK=1 cargo test -p ripstop --all-features --test book reference`"
        );
    }
}
