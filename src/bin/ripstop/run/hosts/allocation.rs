//! Reads which hosts Slurm, PBS or LSF gave this job, and how many ranks each has places for. The code is pure: the
//! caller passes functions that return variables of the environment and the content of the node file.

use super::list::{self, ListedHost};
use super::starter::HelperStarter;
use super::{HOSTS_MAX, ranges};

/// The hosts of an allocation.
#[derive(Debug)]
pub(super) struct HostAllocation {
    pub(super) hosts: Vec<ListedHost>,
    /// The starter that works within this allocation.
    pub(super) starter: HelperStarter,
}

/// Finds the allocation of this process. `variable` is the environment, `file` reads a node file.
pub(super) fn find(
    variable: &dyn Fn(&str) -> Option<String>,
    file: &dyn Fn(&str) -> Result<Vec<u8>, String>,
) -> Result<HostAllocation, String> {
    let (hosts, starter) = if let Some(nodes) = variable("SLURM_JOB_NODELIST") {
        let places = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"];
        let places = places.iter().find_map(|name| variable(name));
        let hosts = slurm(&nodes, places.as_deref());
        (
            hosts.map_err(|why| format!("SLURM_JOB_NODELIST: {why}")),
            HelperStarter::Srun,
        )
    } else if let Some(hosts) = variable("LSB_MCPU_HOSTS") {
        let hosts = lsf(&hosts);
        (
            hosts.map_err(|why| format!("LSB_MCPU_HOSTS: {why}")),
            HelperStarter::Blaunch,
        )
    } else if let Some(path) = variable("PBS_NODEFILE") {
        let hosts = file(&path).and_then(|bytes| list::parse_file(&bytes));
        (
            hosts.map_err(|why| format!("PBS_NODEFILE={path}: {why}")),
            HelperStarter::PbsTmrsh,
        )
    } else if variable("FLUX_URI").is_some() || variable("FLUX_JOB_ID").is_some() {
        return Err("Flux starts ranks on its nodes itself: flux run -n N PROGRAM".to_owned());
    } else {
        return Err("this is no allocation of Slurm, PBS or LSF: none of SLURM_JOB_NODELIST, LSB_MCPU_HOSTS and PBS_NODEFILE \
                    is set; name the hosts with --hosts or --hostfile"
            .to_owned());
    };
    Ok(HostAllocation {
        hosts: hosts?,
        starter,
    })
}

/// Parses `n[0-2,7]` with places `2(x3),1`. Without places, each host has one.
fn slurm(nodes: &str, places: Option<&str>) -> Result<Vec<ListedHost>, String> {
    let mut names = Vec::new();
    for pattern in ranges::split(nodes)? {
        names.extend(ranges::expand(pattern)?);
        list::check_length(names.len())?;
    }
    let places = match places {
        Some(places) => slurm_places(places, names.len())?,
        None => vec![1; names.len()],
    };
    let hosts = names.iter().zip(places);
    let hosts = hosts.map(|(name, places)| ListedHost::new(name, places));
    list::merge(hosts.collect::<Result<_, _>>()?)
}

fn slurm_places(text: &str, hosts: usize) -> Result<Vec<u32>, String> {
    let mut places = Vec::new();
    let wrong =
        || format!("the places {text:?} do not fit {hosts} hosts: expected such as 2(x3),1");
    for part in text.split(',') {
        let (each, times) = match part.split_once("(x") {
            Some((each, times)) => (each, times.strip_suffix(')').unwrap_or("")),
            None => (part, "1"),
        };
        let each: u32 = each.parse().map_err(|_| wrong())?;
        let times: usize = times.parse().map_err(|_| wrong())?;
        if times > hosts - places.len() {
            return Err(wrong());
        }
        places.extend(std::iter::repeat_n(each, times));
    }
    if places.len() == hosts {
        Ok(places)
    } else {
        Err(wrong())
    }
}

/// Parses `h0 4 h1 4`.
fn lsf(text: &str) -> Result<Vec<ListedHost>, String> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(2) || words.len() > 2 * HOSTS_MAX {
        return Err(format!("expected up to {HOSTS_MAX} pairs HOST PLACES"));
    }
    let hosts = words.chunks_exact(2).map(|pair| {
        let places = pair[1].parse();
        let places = places.map_err(|_| format!("{:?} is no number of places", pair[1]))?;
        ListedHost::new(pair[0], places)
    });
    list::merge(hosts.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    fn found(variables: &[(&str, &str)], file: &str) -> Result<String, String> {
        let variable = |name: &str| {
            let set = variables.iter().find(|(known, _)| *known == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        let allocation = find(&variable, &|_| Ok(file.as_bytes().to_vec()))?;
        let hosts = allocation.hosts.iter();
        let hosts = hosts.map(|host| format!("{}:{}", host.name, host.places));
        let hosts = hosts.collect::<Vec<_>>().join(" ");
        Ok(format!("{:?} {hosts}", allocation.starter))
    }

    #[test]
    fn each_manager_tells_its_hosts_in_its_way() {
        let slurm = [
            ("SLURM_JOB_NODELIST", "n[0-2,7]"),
            ("SLURM_TASKS_PER_NODE", "2(x3),1"),
        ];
        assert_eq!(found(&slurm, "").unwrap(), "Srun n0:2 n1:2 n2:2 n7:1");
        let cpus = [
            ("SLURM_JOB_NODELIST", "a,b"),
            ("SLURM_JOB_CPUS_PER_NODE", "4(x2)"),
        ];
        assert_eq!(found(&cpus, "").unwrap(), "Srun a:4 b:4");
        let lsf = [("LSB_MCPU_HOSTS", "h0 4 h1 2")];
        assert_eq!(found(&lsf, "").unwrap(), "Blaunch h0:4 h1:2");
        let pbs = [("PBS_NODEFILE", "/nodes")];
        assert_eq!(found(&pbs, "n1\nn1\nn2\n").unwrap(), "PbsTmrsh n1:2 n2:1");
    }

    #[test]
    fn a_bad_allocation_is_refused_with_its_variable() {
        assert!(found(&[], "").unwrap_err().contains("no allocation"));
        let flux = found(&[("FLUX_URI", "local:///run/flux/local")], "");
        assert!(flux.unwrap_err().contains("flux run -n N PROGRAM"));
        for (nodes, places) in [
            ("n[0-2]", "2"),
            ("n[0-2]", "2(x4)"),
            ("n[0-2]", "2(x99999999999)"),
            ("n[0-2]", "x"),
            ("n[0-2]", "0(x3)"),
            ("", "1"),
            ("-oProxyCommand=x", "1"),
        ] {
            let slurm = [
                ("SLURM_JOB_NODELIST", nodes),
                ("SLURM_TASKS_PER_NODE", places),
            ];
            let refused = found(&slurm, "").unwrap_err();
            assert!(refused.starts_with("SLURM_JOB_NODELIST: "), "{refused}");
        }
        for hosts in ["", "h0", "h0 x", "h0 0", "-v 2"] {
            let refused = found(&[("LSB_MCPU_HOSTS", hosts)], "").unwrap_err();
            assert!(refused.starts_with("LSB_MCPU_HOSTS: "), "{refused}");
        }
        assert!(
            found(&[("PBS_NODEFILE", "/n")], "-v")
                .unwrap_err()
                .contains("PBS_NODEFILE=/n: line 1")
        );
    }

    proptest! {
        #[test]
        fn any_places_are_parsed_or_refused(text in "[0-9x(),]{0,20}", hosts in 1_usize..9) {
            if let Ok(places) = slurm_places(&text, hosts) {
                prop_assert!(places.len() == hosts);
            }
        }
    }
}
