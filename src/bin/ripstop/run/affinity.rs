//! The CPUs that ranks are bound to.

use std::io;

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity},
};

use super::{CpuBinding, message};

/// Returns the CPUs of each of `ranks`, or nothing if no rank is bound.
///
/// By default every rank gets an even share of the allowed CPUs. If there are more CPUs than ranks, the progress agent of a
/// rank then has a CPU of its own.
pub(super) fn plan(wish: Option<CpuBinding>, ranks: u32) -> io::Result<Vec<Option<CpuSet>>> {
    let ranks = usize::try_from(ranks).unwrap_or(usize::MAX);
    if wish == Some(CpuBinding::None) {
        return Ok(vec![None; ranks]);
    }
    let allowed = match allowed() {
        // The kernel knows more CPUs than a set has room for.
        Err(why) if why.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Vec::new(),
        allowed => allowed?,
    };
    if ranks > allowed.len() {
        if wish == Some(CpuBinding::Core) {
            let cpus = allowed.len();
            message::print_line(&format!(
                "--bind core: {ranks} ranks on {cpus} allowed CPUs would share CPUs; no rank is bound"
            ));
        }
        return Ok(vec![None; ranks]);
    }
    let each = if wish == Some(CpuBinding::Core) {
        1
    } else {
        allowed.len() / ranks
    };
    Ok(allowed
        .chunks_exact(each)
        .take(ranks)
        .map(|cpus| Some(only(cpus)))
        .collect())
}

/// Returns the CPUs that were named for each of `ranks`; a rank for which none were named is bound to none in particular.
///
/// # Errors
/// A named CPU is not among the allowed ones of this host, or these cannot be read.
pub(super) fn named(cpus: &[Vec<u32>], ranks: &[u32]) -> Result<Vec<Option<CpuSet>>, String> {
    let allowed = allowed().map_err(|why| format!("reading the allowed CPUs: {why}"))?;
    let numbers: Vec<u32> = allowed
        .iter()
        .filter_map(|&cpu| cpu.try_into().ok())
        .collect();
    let each = ranks.iter().zip(cpus).map(|(rank, cpus)| {
        if let Some(cpu) = cpus.iter().find(|cpu| !numbers.contains(cpu)) {
            let allowed = message::cpus(&numbers);
            return Err(format!(
                "rank {rank} cannot be bound to CPU {cpu}: this host allows {allowed}; change its line in the rank file"
            ));
        }
        let cpus: Vec<usize> = cpus.iter().map(|&cpu| cpu as usize).collect();
        Ok((!cpus.is_empty()).then(|| only(&cpus)))
    });
    each.collect()
}

fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

fn only(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_the_cpus_that_were_named_for_them_if_they_are_allowed() {
        let own = u32::try_from(allowed().unwrap()[0]).unwrap();
        let bound = named(&[vec![], vec![own]], &[3, 7]).unwrap();
        assert!(bound[0].is_none());
        assert!(bound[1].is_some_and(|set| set.count() == 1 && set.is_set(own as usize)));
        let refused = named(&[vec![own], vec![u32::MAX]], &[3, 7]).unwrap_err();
        let said = "rank 7 cannot be bound to CPU 4294967295: this host allows CPU";
        assert!(refused.starts_with(said), "{refused}");
    }

    #[test]
    fn every_rank_has_a_cpu_or_none_has() {
        let cpus = u32::try_from(allowed().unwrap().len()).unwrap();
        let bound = plan(None, cpus).unwrap();
        assert!(
            bound
                .iter()
                .all(|set| set.as_ref().is_some_and(|set| set.count() == 1))
        );
        let alone = plan(None, 1).unwrap();
        assert_eq!(alone[0].as_ref().unwrap().count(), cpus);
        assert!(plan(None, cpus + 1).unwrap().iter().all(Option::is_none));
        assert!(
            plan(Some(CpuBinding::None), 1)
                .unwrap()
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(
            plan(Some(CpuBinding::Core), cpus + 1).unwrap().len() as u64,
            u64::from(cpus) + 1
        );
    }
}
