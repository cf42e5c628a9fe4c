//! Which CPU each rank is bound to.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::{Bind, message};

/// For each of `ranks` the CPU it is bound to, or nothing for all of them.
pub(super) fn plan(wish: Option<Bind>, ranks: u32) -> io::Result<Vec<Option<CpuSet>>> {
    let allowed = allowed()?;
    let enough = usize::try_from(ranks).is_ok_and(|ranks| ranks <= allowed.len());
    if wish == Some(Bind::Core) && !enough {
        let cpus = allowed.len();
        message::tell(&format!(
            "--bind core: {ranks} ranks on {cpus} allowed CPUs would share; binding none of them"
        ));
    }
    let bound = enough && wish != Some(Bind::None);
    let mut cpus = allowed.into_iter();
    Ok((0..ranks)
        .map(|_| if bound { cpus.next().map(only) } else { None })
        .collect())
}

fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_cpu_or_none_has() {
        let cpus = u32::try_from(allowed().unwrap().len()).unwrap();
        let bound = plan(None, cpus).unwrap();
        assert!(
            bound
                .iter()
                .all(|set| set.as_ref().is_some_and(|set| set.count() == 1))
        );
        assert!(plan(None, cpus + 1).unwrap().iter().all(Option::is_none));
        assert!(
            plan(Some(Bind::None), 1)
                .unwrap()
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(
            plan(Some(Bind::Core), cpus + 1).unwrap().len() as u64,
            u64::from(cpus) + 1
        );
    }
}
