//! The arguments of `cargo xtask bench compare`.

use std::path::PathBuf;

use super::tcp;

pub(super) const HELP: &str = "\
cargo xtask bench compare [--only NAME,NAME] [--row TEXT]... [--repeats N] [--json FILE] [--built] [--list] [--peers-only]
                          [--only tcp --between-hosts]

  --only        latency, bandwidth, bibandwidth, rate, threads, matching, collectives, rma, ring, faces, halo, p3dfft, startup,
                idle, overlap, tcp (default: all)
  --row         only the rows with this text in their names, such as \"bcast 8 B, 2 ranks\"; may be given again for others
  --list        prints the names of the rows and measures nothing
  --built       takes our programs and the peers' as they are, and builds nothing
  --repeats     how often every contestant runs, in turns (default 5, at least 1; fewer than 5 is for trying out)
  --json        writes every record and every row of the table to FILE, one JSON object per line
  --peers-only  MPICH and Open MPI alone
  --between-hosts  with --only tcp: also between hosts that are namespaces of this machine, and the start of a job on 3 and on
                32 of them; needs what `cargo xtask hosts` needs. Both tables take less than fifteen minutes

  cargo xtask bench compare --only tcp --between-hosts --json tcp.jsonl
";

/// Measurements to make, the number of repeats, and the file for the records.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CompareOptions {
    pub(super) only: Vec<String>,
    pub(super) rows: Vec<String>,
    pub(super) repeats: usize,
    pub(super) json: Option<PathBuf>,
    pub(super) peers_only: bool,
    pub(super) built: bool,
    pub(super) list: bool,
    pub(super) between_hosts: bool,
}

impl CompareOptions {
    /// Parses the arguments; `None` if help was asked for.
    pub(super) fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            only: Vec::new(),
            rows: Vec::new(),
            repeats: 5,
            json: None,
            peers_only: false,
            built: false,
            list: false,
            between_hosts: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"))
            };
            match arg.as_str() {
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--row" => options.rows.push(value()?.clone()),
                "--built" => options.built = true,
                "--list" => options.list = true,
                "--repeats" => options.repeats = repeats(value()?)?,
                "--json" => options.json = Some(PathBuf::from(value()?)),
                "--between-hosts" => options.between_hosts = true,
                "--peers-only" => options.peers_only = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown argument {arg}\n\n{HELP}")),
            }
        }
        if options.between_hosts && options.only != [tcp::GROUP] {
            return Err("--between-hosts compares TCP alone: add --only tcp".to_owned());
        }
        Ok(Some(options))
    }
}

fn repeats(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(repeats) if repeats >= 1 => Ok(repeats),
        _ => Err(format!(
            "--repeats {text}: give a whole number of at least 1, such as 5"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::CompareOptions;

    fn parse(line: &str) -> Result<Option<CompareOptions>, String> {
        CompareOptions::parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn all_arguments_are_understood() {
        let options = parse("--only latency,halo --repeats 7 --json out.jsonl --peers-only")
            .unwrap()
            .unwrap();
        assert_eq!(options.only, ["latency", "halo"]);
        assert_eq!((options.repeats, options.peers_only), (7, true));
        let options = parse("--row bcast --row pscw --built --list").unwrap();
        let options = options.unwrap();
        assert_eq!(options.rows, ["bcast", "pscw"]);
        assert!(options.built && options.list);
        let options = parse("--only tcp --between-hosts").unwrap().unwrap();
        assert!(options.between_hosts);
    }

    #[test]
    fn records_go_where_one_says() {
        let options = parse("--json out.jsonl").unwrap().unwrap();
        assert_eq!(options.json.unwrap().to_str(), Some("out.jsonl"));
    }

    #[test]
    fn a_bad_argument_is_named() {
        assert!(parse("--repeats 0").unwrap_err().contains("--repeats 0"));
        assert!(parse("--repeats").unwrap_err().contains("needs a value"));
        assert!(parse("--between-hosts").unwrap_err().contains("--only tcp"));
        assert!(parse("--fast").unwrap_err().contains("--fast"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
