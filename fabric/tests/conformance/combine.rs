//! Claims about tasks that combine integers, for drivers that run lists: one for each operator.

use ripstop_fabric::{
    driver::CommandToken,
    offload::{CombineOperator, IntegerType, PutTarget, TaskAction, TriggeredTask, TypedOperator},
};

use crate::{
    lists::Bench,
    world::{Make, World, contents, noise, peer},
};

pub(crate) fn blocks_that_arrive_are_added_and_wrap(make: Make) {
    arrivals_are_combined(make, CombineOperator::Sum);
}

pub(crate) fn of_blocks_that_arrive_the_lesser_elements_stay(make: Make) {
    arrivals_are_combined(make, CombineOperator::Min);
}

pub(crate) fn of_blocks_that_arrive_the_greater_elements_stay(make: Make) {
    arrivals_are_combined(make, CombineOperator::Max);
}

pub(crate) fn bits_that_both_blocks_have_stay(make: Make) {
    arrivals_are_combined(make, CombineOperator::And);
}

pub(crate) fn bits_that_either_block_has_stay(make: Make) {
    arrivals_are_combined(make, CombineOperator::Or);
}

pub(crate) fn bits_that_one_block_has_stay(make: Make) {
    arrivals_are_combined(make, CombineOperator::Xor);
}

/// Has a rank put blocks to another one, whose list combines each with its own block.
fn arrivals_are_combined(make: Make, operator: CombineOperator) {
    const FROM: usize = 30_000;
    let mut bench = Bench::new(make, 2);
    let mut nth = 0;
    for integer in IntegerType::ALL {
        // One element, a length for the adapter, and a length that is left to the processor.
        for len in [integer.bytes(), 2000, 20_000] {
            nth += 1;
            let (mut ours, theirs) = (noise(2 * nth, len), noise(2 * nth + 1, len));
            bench.regions[0].write(0, &ours);
            bench.regions[1].write(0, &theirs);
            let how = TypedOperator { operator, integer };
            combine_when(&mut bench, nth, [0, FROM, len], how);
            let landing = bench.landing(0, FROM, len, 1);
            let put = TriggeredTask {
                condition: bench.when(1, 0, nth),
                second_condition: None,
                action: TaskAction::Put {
                    to: peer(0),
                    from: bench.part(1, 0, len),
                    target: PutTarget::Known {
                        into: landing.into,
                        count: Some(landing.count),
                    },
                    done: None,
                },
            };
            bench.post(1, &[put], 1);
            bench.count(1, 1, 0, 1);
            bench.until(0, 2, nth);
            combined(how, &mut ours, &theirs);
            let found = &contents(&bench.regions[0])[..len];
            assert!(found == ours, "{how:?} of {len} bytes");
        }
    }
}

/// Posts a task that combines block number `nth` when it has arrived, and counts that.
fn combine_when(bench: &mut Bench, nth: u64, [into, from, len]: [usize; 3], how: TypedOperator) {
    let combine = TriggeredTask {
        condition: bench.when(0, 1, nth),
        second_condition: None,
        action: TaskAction::Combine {
            from: bench.part(0, from, len),
            into: bench.part(0, into, len),
            how,
            done: Some(bench.own(0, 2)),
        },
    };
    bench.post(0, &[combine], 2);
}

/// Has one rank put `count` blocks to another one, which adds them up one after the other. Each rank uses one list.
pub(crate) fn a_row_of_blocks_is_added(world: World, count: u64) {
    const LEN: usize = 800;
    let mut bench = Bench::of(world, 2);
    let how = TypedOperator {
        operator: CombineOperator::Sum,
        integer: IntegerType::U32,
    };
    let mut sum = vec![0; LEN];
    let (mut puts, mut sums) = (Vec::new(), Vec::new());
    for nth in 0..count {
        let (at, block) = (LEN * (1 + nth as usize), noise(nth, LEN));
        combined(how, &mut sum, &block);
        bench.regions[1].write(at, &block);
        let landing = bench.landing(0, at, LEN, 1);
        puts.push(TriggeredTask {
            condition: bench.when(1, 0, 1),
            second_condition: None,
            action: TaskAction::Put {
                to: peer(0),
                from: bench.part(1, at, LEN),
                target: PutTarget::Known {
                    into: landing.into,
                    count: Some(landing.count),
                },
                done: Some(bench.own(1, 1)),
            },
        });
        sums.push(TriggeredTask {
            condition: bench.when(0, 1, count),
            second_condition: Some(bench.when(0, 2, nth)),
            action: TaskAction::Combine {
                from: bench.part(0, at, LEN),
                into: bench.part(0, 0, LEN),
                how,
                done: Some(bench.own(0, 2)),
            },
        });
    }
    bench.post(0, &sums, 1);
    bench.post(1, &puts, 2);
    bench.count(1, 1, 0, 1);
    bench.until(1, 1, count);
    bench.until(0, 2, count);
    assert!(contents(&bench.regions[0])[..LEN] == sum);
    for (rank, token) in [(0, 1), (1, 2)] {
        bench.world.until("the list to have begun", |world| {
            world[rank].heard.triggered == [CommandToken(token)]
        });
    }
}

/// Computes the expected result, by numbers that are longer than all elements.
fn combined(how: TypedOperator, ours: &mut [u8], theirs: &[u8]) {
    let size = how.integer.bytes();
    for (ours, theirs) in ours.chunks_mut(size).zip(theirs.chunks(size)) {
        let [a, b] = [&*ours, theirs].map(|bytes| number(how.integer, bytes));
        let one = match how.operator {
            CombineOperator::Sum => a + b,
            CombineOperator::Min => a.min(b),
            CombineOperator::Max => a.max(b),
            CombineOperator::And => a & b,
            CombineOperator::Or => a | b,
            CombineOperator::Xor => a ^ b,
        };
        ours.copy_from_slice(&one.to_le_bytes()[..size]);
    }
}

fn number(integer: IntegerType, bytes: &[u8]) -> i128 {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let number = i128::from_le_bytes(wide);
    let bits = 8 * bytes.len() as u32;
    let is_signed = matches!(
        integer,
        IntegerType::I8 | IntegerType::I16 | IntegerType::I32 | IntegerType::I64
    );
    if is_signed && number >> (bits - 1) == 1 {
        number - (1 << bits)
    } else {
        number
    }
}
