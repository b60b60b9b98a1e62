"""The right kernel is never accused: drawn cases over shapes, dtypes, layouts, seeds, scales and value patterns."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.inputs.draw import draw, outputs_of
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import LAYOUTS, TENSORS
from gradprobe.model.case import DTYPES, PATTERNS, Case
from gradprobe.numerics.compare import Comparison, attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.runtime.run import run_target
from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.sampling import DRAWS, tries

# Dyadic values do not exist for all of these cases.
DRAWN = tuple(pattern for pattern in PATTERNS if pattern != "dyadic")
# At most 4 programs for each tile: more of them only take longer.
_BATCHES_AND_HEADS = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1)]


def drawn_options(draws: random.Random, on_kink: bool) -> dict[str, Any]:
    pick = draws.choice
    (batch, heads), seqlen = pick(_BATCHES_AND_HEADS), draws.randint(1, 70)
    lengths = [0, 1, seqlen, *(draws.randint(0, seqlen) for _ in range(3))]
    of_heads = tuple(draws.uniform(-4, 4) for _ in range(heads))
    tau = pick([None, (-1.0,), (0.0,), (-float(seqlen),), of_heads])
    of_each = tuple((tensor, pick(LAYOUTS)) for tensor in TENSORS)
    layouts = pick([(("all", pick(LAYOUTS)),), of_each])
    options = {
        "heads": heads, "batch": batch, "seqlen": seqlen, "head_dim": draws.randint(1, 40),
        "bias_window": draws.randint(1, 90), "bias": pick([True, True, True, False]), "tau": tau,
        "seqlens": pick([None, tuple(pick(lengths) for _ in range(batch))]),
        "scale": pick([None, None, None, 1.0, 0.05, 0.0, -0.3]),
        "dtype": pick(DTYPES), "pattern": pick(DRAWN), "seed": draws.randrange(2**31), "layouts": layouts,
        "block_m": pick([16, 32, 64]), "block_n": pick([16, 32, 64]),
    }  # fmt: skip
    options |= {} if options["bias"] else {"bias_window": None}
    return options | ({"tau": (-1.0,), "pattern": "small", "scale": None} if on_kink else {})


def compared(case: Case) -> Comparison:
    target, values = find_target("lazy"), draw(case)
    inputs = place(values | outputs_of(case, target.outputs, values), case.layouts)
    outcome = run_target(target, case, inputs)
    assert outcome.trace is not None, outcome.refused
    return compare(
        case, attention_of(case, inputs.values), outcome.trace, precision_of(case.dtype, "ieee")
    )


@tries(10, night=2000)
@given(DRAWS, st.sampled_from([False] * 9 + [True]))
def test_the_right_kernel_matches(draws, on_kink):
    options = drawn_options(draws, on_kink)
    findings = compared(lazy_case(**options)).findings
    assert len(findings) == 11 - (not options["bias"])
    wrong = {name: found.first for name, found in findings.items() if found.mismatched}
    assert not wrong, f"{options} was accused of {wrong}"


def test_a_row_whose_every_entry_flips_on_the_kink_is_not_accused_for_the_rounding_of_its_sum():
    # P is 1 / (i + 1) to rounding: the reference lets nothing of a row through and the kernel, here and there, all.
    flat = {
        "tau": (-1.0,), "scale": 0.0, "bias": False, "batch": 1, "heads": 2, "seqlen": 64,
        "head_dim": 15,
    }  # fmt: skip
    for dtype in DTYPES:
        for options in (
            {"pattern": "offset"},
            {"layouts": (("do", "expanded"), ("v", "expanded"))},
        ):
            comparison = compared(lazy_case(**flat, **options, dtype=dtype))
            assert comparison.undecided == 2 * 64 * 65 // 2
            assert comparison.matches, (dtype, options)


RECURRING = [
    # All entries are on the kink; dK of the last live key, one entry of dS, was off by 89/88 of what one mask allows.
    {"heads": 2, "seqlen": 46, "head_dim": 26, "bias": False, "tau": (-1.0,), "seqlens": (1, 45), "seed": 790011494,
     "pattern": "lowrank", "layouts": (("all", "expanded"),), "block_m": 16, "block_n": 64},
    # q and dO of stride 0: rows of P repeat and their roundings add up, to 1.9 and 2.1 times what independent ones may.
    {"dtype": "float16", "pattern": "large", "batch": 1, "heads": 2, "seqlen": 200, "head_dim": 16, "bias": False,
     "tau": (0.0,), "block_m": 128, "block_n": 128, "layouts": (("q", "expanded"), ("do", "expanded"))},
]  # fmt: skip


@pytest.mark.parametrize("options", RECURRING)
def test_what_recurs_in_every_row_is_not_accused(options):
    assert compared(lazy_case(**options)).matches
