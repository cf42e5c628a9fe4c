//! The arguments of `cargo xtask bench instructions`.

use std::path::PathBuf;

pub(super) const HELP: &str = "\
cargo xtask bench instructions [--only ROW,ROW] [--set-budgets] [--peers] [--json FILE] [--built] [--list]

Counts the instructions of a call under valgrind: those of 4000 calls less those of 2000. The counts do not depend on the
machine's speed; those of two ranks vary by some percent. Fails where a row is three times more than 3 % over its budget in
benches/instructions/budgets.txt, and names the functions that have grown.

  --only         these rows (default: all)
  --list         prints the names of the rows and counts nothing
  --set-budgets  writes what is counted into the file of budgets
  --peers        also counts for MPICH and Open MPI, where their compilers are installed (Debian: libmpich-dev, libopenmpi-dev)
  --json         writes a line of JSON for each row to FILE
  --built        takes the program as it is, and builds nothing

Example: cargo xtask bench instructions --only message,channel
";

/// Rows to count, and what to do with the counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InstructionOptions {
    pub(super) only: Vec<String>,
    pub(super) json: Option<PathBuf>,
    pub(super) set_budgets: bool,
    pub(super) peers: bool,
    pub(super) built: bool,
    pub(super) list: bool,
}

impl InstructionOptions {
    /// Parses the arguments; `None` if help was asked for.
    pub(super) fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"))
            };
            match arg.as_str() {
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--json" => options.json = Some(PathBuf::from(value()?)),
                "--set-budgets" => options.set_budgets = true,
                "--peers" => options.peers = true,
                "--built" => options.built = true,
                "--list" => options.list = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown argument {arg}\n\n{HELP}")),
            }
        }
        Ok(Some(options))
    }
}

#[cfg(test)]
mod tests {
    use super::InstructionOptions;

    fn parse(line: &str) -> Result<Option<InstructionOptions>, String> {
        let words = line.split_whitespace().map(str::to_owned);
        InstructionOptions::parse(&words.collect::<Vec<_>>())
    }

    #[test]
    fn all_arguments_are_understood() {
        let options = parse("--only put,pscw --json out.jsonl --peers --built")
            .unwrap()
            .unwrap();
        assert_eq!(options.only, ["put", "pscw"]);
        assert_eq!(options.json.unwrap().to_str(), Some("out.jsonl"));
        assert!(options.peers && options.built && !options.set_budgets && !options.list);
        let options = parse("--set-budgets --list").unwrap().unwrap();
        assert!(options.set_budgets && options.list);
    }

    #[test]
    fn a_bad_argument_is_named_and_help_is_no_mistake() {
        assert!(parse("--only").unwrap_err().contains("needs a value"));
        assert!(parse("--fast").unwrap_err().contains("--fast"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
