//! Several programs in one job: `ripstop run -n 1 server : -n 3 client`.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::iter;

use clap::{Parser, value_parser};

use super::hosts::RANKS_MAX;
use super::hosts::setup::HostProgram;
use super::program::{LaunchProgram, ProgramArgs};
use super::{LaunchError, RunArgs, check_words, complain};

/// A program of the job, and the number of ranks that run it. Their numbers follow those of the program before.
#[derive(Debug)]
pub(super) struct ProgramRanks {
    pub(super) ranks: u32,
    pub(super) program: LaunchProgram,
}

/// What stands behind a colon on the command line.
#[derive(Debug, Parser)]
#[command(
    name = "ripstop run ... :",
    disable_help_flag = true,
    override_usage = "ripstop run -n N [OPTIONS] PROGRAM [ARGS] : -n N PROGRAM [ARGS]",
    no_binary_name = true
)]
pub(super) struct LaterProgram {
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    ranks: u32,

    #[command(flatten)]
    program: ProgramArgs,
}

/// Takes the later programs from the words behind the first, and from the whole command line. A colon separates programs if
/// an option for the number of ranks follows it; any other colon is an argument.
pub(super) fn split_off(
    command: &mut Vec<OsString>,
    words: &mut Vec<OsString>,
) -> Vec<LaterProgram> {
    let Some(first) = (0..command.len()).find(|&at| is_separator(&command[at..])) else {
        return Vec::new();
    };
    let tail = command.split_off(first);
    words.truncate(words.len() - tail.len());
    let mut later: Vec<Vec<OsString>> = Vec::new();
    for (at, word) in tail.iter().enumerate() {
        match later.last_mut() {
            _ if is_separator(&tail[at..]) => later.push(Vec::new()),
            Some(part) if part.is_empty() => part.extend(ranks_option(word)),
            Some(part) => part.push(word.clone()),
            None => {} // The first word of the tail is a separator.
        }
    }
    later
        .iter()
        .map(|words| LaterProgram::read(words))
        .collect()
}

/// Returns true for a colon with an option for the number of ranks behind it: `-n 3`, `-n3`, `-n=3`, and the same with `-np` or
/// `--ranks`.
fn is_separator(words: &[OsString]) -> bool {
    let [colon, option, ..] = words else {
        return false;
    };
    let option = option.to_string_lossy();
    let short = option
        .strip_prefix("-np")
        .or_else(|| option.strip_prefix("-n"));
    let is_ranks = match (option.strip_prefix("--ranks"), short) {
        (Some(rest), _) => rest.is_empty() || rest.starts_with('='),
        (None, Some(rest)) => rest
            .trim_start_matches('=')
            .bytes()
            .all(|byte| byte.is_ascii_digit()),
        (None, None) => false,
    };
    colon == ":" && is_ranks
}

/// Returns an option for the number of ranks as `-n` and, if the number is a part of the word, the number.
fn ranks_option(word: &OsString) -> Vec<OsString> {
    let text = word.to_string_lossy();
    let short = text.strip_prefix("-np").or_else(|| text.strip_prefix("-n"));
    let Some(number) = short.map(|number| number.trim_start_matches('=')) else {
        return vec![word.clone()];
    };
    let number = (!number.is_empty()).then(|| number.into());
    iter::once("-n".into()).chain(number).collect()
}

impl LaterProgram {
    fn read(words: &[OsString]) -> Self {
        let mut later = Self::try_parse_from(words).unwrap_or_else(|why| why.exit());
        check_words(&mut later.program, words);
        if let Some(option) = later.program.command.first().filter(|word| is_option(word)) {
            complain(&format!(
                "{} behind a `:`: options of the job stand before its first program",
                option.display()
            ));
        }
        later
    }

    fn find(mut self) -> Result<ProgramRanks, LaunchError> {
        Ok(ProgramRanks {
            ranks: self.ranks,
            program: self.program.find()?,
        })
    }
}

/// Finds all programs of a job on this machine.
pub(super) fn find_all(
    args: &mut RunArgs,
    later: Vec<LaterProgram>,
) -> Result<Vec<ProgramRanks>, LaunchError> {
    let first = ProgramRanks {
        ranks: args.ranks.unwrap_or(1), // Only hosts may do without a number.
        program: args.program.find()?,
    };
    let mut programs = vec![first];
    for one in later {
        programs.push(one.find()?);
    }
    Ok(programs)
}

/// Names all programs of a job over hosts, which look for them themselves. Only what cargo builds is built here, in a folder that
/// all hosts must see.
pub(super) fn name_all(
    args: &mut RunArgs,
    later: Vec<LaterProgram>,
) -> Result<Vec<HostProgram>, LaunchError> {
    let mut programs = vec![name_one(0, &mut args.program)?];
    let mut first = args.ranks.unwrap_or(0); // Without a number, this program has all ranks.
    for mut one in later {
        programs.push(name_one(first, &mut one.program)?);
        first += one.ranks;
    }
    Ok(programs)
}

fn name_one(first: u32, program: &mut ProgramArgs) -> Result<HostProgram, LaunchError> {
    let (program, arguments) = if program.cargo.target().is_some() {
        let found = program.find()?;
        (found.path.into(), found.arguments)
    } else {
        let mut words = std::mem::take(&mut program.command).into_iter();
        (words.next().unwrap_or_default(), words.collect())
    };
    Ok(HostProgram {
        first,
        program,
        arguments,
    })
}

/// Returns the number of ranks of all programs together; `None` if the hosts decide it.
pub(super) fn all_ranks(
    of_first: Option<u32>,
    later: &[LaterProgram],
) -> Result<Option<u32>, LaunchError> {
    if later.is_empty() {
        return Ok(of_first);
    }
    let Some(of_first) = of_first else {
        let sentence = "the first of several programs has no number of ranks: name it with -n N";
        return Err(LaunchError::usage(sentence));
    };
    let all = later
        .iter()
        .fold(of_first, |all, part| all.saturating_add(part.ranks));
    if all > RANKS_MAX {
        let sentence =
            format!("all programs together have {all} ranks: at most {RANKS_MAX} are possible");
        return Err(LaunchError::usage(sentence));
    }
    Ok(Some(all))
}

/// Joins the names of programs as on the command line.
pub(super) fn names(names: impl Iterator<Item: Borrow<str>>) -> String {
    names.collect::<Vec<_>>().join(" : ")
}

fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the first program, and number and words of each later one.
    fn split(line: &str) -> (Vec<String>, Vec<(u32, Vec<String>)>) {
        let strings = |words: &[OsString]| -> Vec<String> {
            words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect()
        };
        let mut command: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let mut words = command.clone();
        words.insert(0, "ripstop".into());
        let later = split_off(&mut command, &mut words);
        assert_eq!(words.len(), command.len() + 1);
        let later = later
            .iter()
            .map(|part| (part.ranks, strings(&part.program.command)));
        (strings(&command), later.collect())
    }

    #[test]
    fn a_colon_before_a_number_of_ranks_separates_programs_and_any_other_is_an_argument() {
        let strings = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (first, later) = split("a --x : -n 3 b -n 2 : -np 1 c");
        assert_eq!(first, strings("a --x"));
        assert_eq!(later, [(3, strings("b -n 2")), (1, strings("c"))]);
        let (first, later) = split("a : b :");
        assert_eq!((first, later.len()), (strings("a : b :"), 0));
        let (_, later) = split("a : -n3 b : -np=2 c : -np4 d : -name");
        let parts = [(3, "b"), (2, "c"), (4, "d : -name")];
        assert_eq!(later, parts.map(|(ranks, words)| (ranks, strings(words))));
        // As behind the first program, `--` stands between a program and its arguments.
        let (_, later) = split("a : --ranks=2 b -- -n :");
        assert_eq!(later, [(2, strings("b -n :"))]);
    }
}
