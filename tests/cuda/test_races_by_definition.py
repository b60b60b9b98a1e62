"""Races of random kernels against their definition: all pairs of accesses, compared one by one."""

import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.frontends import Launches
from gradprobe.model.memory_finding import RACE
from tests.cuda.written import Watch, loaded, watched
from tests.sampling import tries

NOTHING, READ, WRITE, ATOMIC, BARRIER, WARP_BARRIER = range(6)
HOW = {READ: "read", WRITE: "write", ATOMIC: "atomic"}
GLOBAL, SHARED = ("a", "b"), ("s", "t")
ARRAYS = (*GLOBAL, *SHARED)
BLOCKS, THREADS = 2, 70  # the last warp has 6 lanes

# A program is, for each thread and step, what it does and to which array.
SOURCE = r"""
__device__ void step(int op, int* cell, int* sum, int value) {
    if (op == 1) *sum += *cell;
    if (op == 2) *cell = value;
    if (op == 3) atomicAdd(cell, 1000 * value);
}
__global__ void run(const int* program, int steps, int is_fenced, int is_equal, int* a, int* b, int* sums) {
    __shared__ int s, t;
    int sum = 0, number = blockIdx.x * blockDim.x + threadIdx.x;
    if (is_fenced) __threadfence();
    for (int i = 0; i < steps; ++i) {
        int op = program[(number * steps + i) * 2], array = program[(number * steps + i) * 2 + 1];
        if (op == 4) __syncthreads();
        if (op == 5) __syncwarp();
        step(op, array == 0 ? a : array == 1 ? b : array == 2 ? &s : &t, &sum, is_equal ? 0 : number + 1);
    }
    sums[number] = sum;
}
"""


@dataclass(frozen=True)
class Access:
    block: int
    thread: int
    how: int
    array: str
    epoch: int
    """Barriers of the block before it."""
    warp_epoch: int
    """Those of the warp."""


def is_unordered(one: Access, other: Access, is_fenced: bool) -> bool:
    if one.array != other.array or (one.block, one.thread) == (other.block, other.thread):
        return False
    if one.how == other.how and one.how in (READ, ATOMIC):
        return False
    if one.block != other.block:
        return one.array in GLOBAL and not is_fenced
    if one.epoch != other.epoch:
        return False
    return one.thread // 32 != other.thread // 32 or one.warp_epoch == other.warp_epoch


def is_race(one: Access, other: Access, is_fenced: bool, is_equal: bool) -> bool:
    is_same = is_equal and one.how == other.how == WRITE
    return is_unordered(one, other, is_fenced) and not is_same


def drawn(seed: int) -> tuple[torch.Tensor, list[Access]]:
    draw = random.Random(seed)
    steps = draw.randint(3, 12)
    program = torch.zeros(BLOCKS, THREADS, steps, 2, dtype=torch.int32)
    mixtures = (
        [READ, WRITE, ATOMIC],
        [READ, READ, READ, WRITE],
        [ATOMIC, ATOMIC, READ],
        [WRITE, ATOMIC],
    )
    kinds = draw.choice(mixtures)
    # Few threads, so that the same ones come again.
    threads = draw.sample(range(THREADS), draw.choice((3, 6, 20)))
    busy = draw.choice((1, 2, 4)) / len(threads)
    accesses = []
    for block in range(BLOCKS):
        epoch, warp_epochs = 0, [0, 0, 0]
        for step in range(steps):
            barrier = draw.random()
            if barrier < 0.2:
                program[block, :, step, 0] = BARRIER
                epoch += 1
                continue
            for warp in range(3):
                if barrier > 0.6 and draw.random() < 0.5:
                    program[block, warp * 32 : warp * 32 + 32, step, 0] = WARP_BARRIER
                    warp_epochs[warp] += 1
            for thread in threads:
                if program[block, thread, step, 0] == NOTHING and draw.random() < busy:
                    how, array = draw.choice(kinds), draw.randrange(len(ARRAYS))
                    program[block, thread, step] = torch.tensor([how, array])
                    epochs = epoch, warp_epochs[thread // 32]
                    accesses.append(Access(block, thread, how, ARRAYS[array], *epochs))
    return program, accesses


def by_definition(accesses: list[Access], *how: bool) -> set[tuple[str, frozenset[str]]]:
    return {
        (one.array, frozenset((HOW[one.how], HOW[other.how])))
        for one, other in itertools.combinations(accesses, 2)
        if is_race(one, other, *how)
    }


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("races"), SOURCE)


@tries(60)
@given(
    seed=st.integers(0, 2**31 - 1),
    is_fenced=st.sampled_from([False, False, False, True]),
    is_equal=st.booleans(),
    in_order=st.booleans(),
)
def test_races_are_those_of_the_definition(module, seed, is_fenced, is_equal, in_order):
    program, accesses = drawn(seed)
    a, b = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    sums, steps = torch.zeros(BLOCKS * THREADS, dtype=torch.int32), program.shape[2]
    with watched(Watch(Launches(schedule=0 if in_order else seed))) as watch:
        module.run(BLOCKS, THREADS, 0, program, steps, int(is_fenced), int(is_equal), a, b, sums)
    races = [finding for finding in watch.findings if finding.kind == RACE]
    found = {(race.array, frozenset((race.now.how, race.before.how))) for race in races}
    assert found == by_definition(accesses, is_fenced, is_equal)
    assert all(are_in(race, accesses, is_fenced, is_equal) for race in races)


def are_in(race, accesses: list[Access], *how: bool) -> bool:
    def those(site):
        return [
            access for access in accesses
            if (access.block, access.thread, HOW[access.how], access.array)
            == (site.block[0], site.thread[0], site.how, race.array)
        ]  # fmt: skip

    return any(
        is_race(*pair, *how) for pair in itertools.product(those(race.now), those(race.before))
    )


def test_programs_have_races_and_have_none():
    counts = [len(by_definition(drawn(seed)[1], seed % 4 == 3, False)) for seed in range(200)]
    assert min(counts) == 0
    assert sum(count == 0 for count in counts) >= 10
    assert sum(count >= 3 for count in counts) >= 50
