"""Nothing right is accused: whole checks of every built-in target that runs here, on drawn cases and layouts.

28 on every push, the same each time; 2,000 with `GRADPROBE_TESTS=night`.
"""

import os
import random
from collections import Counter

import pytest

from gradprobe.answer import answer
from gradprobe.failures import Refusal, UsageFailure
from gradprobe.last import Asked
from gradprobe.targets.builtin import BUILTINS

TARGETS = [name for name, row in BUILTINS.items() if not row.missing()]
COUNT = 2000 if os.environ.get("GRADPROBE_TESTS") == "night" else 28
GROUP = 4
DRAWN_DTYPES = ("float32", "float32", "float16", "bfloat16")
PATTERNS = ("normal", "normal", "small", "large", "negative", "offset", "lowrank")
RUNS = ("contiguous", "distinct", "do=expanded", "blhd", "packed", "offset", "do=blhd", "strided-last")


def drawn(index):
    """A target and the options of a case that it may refuse in words, the same on every machine."""
    draws = random.Random(f"right {index}")
    pick, whole = draws.choice, draws.randint
    target = TARGETS[index % len(TARGETS)]
    options = {
        "batch": whole(1, 2), "heads": pick([1, 2]), "seqlen": whole(1, 40), "head_dim": pick([3, 8, 16, 17]),
        "dtype": pick(DRAWN_DTYPES), "seed": whole(0, 2**31), "recover": pick([True, False]),
        "pattern": pick(PATTERNS), "runs": [pick(RUNS)],
    }  # fmt: skip
    if target.startswith("lazy"):
        return target, options
    options |= {"causal": pick([True, False])}
    options |= pick([{}, {"heads": 4, "kv_heads": 2}, {"scale": 0.05}, {"window": "7,3"}, {"softcap": 5.0}])
    options |= pick([{}, {}, {"seqlens": ",".join(str(whole(0, options["seqlen"])) for _ in range(options["batch"]))}])
    return target, options


def verdict_of(index):
    target, options = drawn(index)
    try:
        report = answer(Asked(target, None, None, options), "")
    except (UsageFailure, Refusal):
        return "not taken"
    assert report.verdict == "match", (index, target, options, report.failing)
    return f"match {report.provenance.backend}"


@pytest.mark.parametrize("group", range(COUNT // GROUP))
def test_a_right_target_matches_or_refuses_the_case_in_words(group):
    verdicts = [verdict_of(index) for index in range(group * GROUP, (group + 1) * GROUP)]
    assert any(verdict != "not taken" for verdict in verdicts)


def test_the_drawn_cases_hold_every_target_dtype_and_layout():
    cases = [drawn(index) for index in range(400)]
    assert {target for target, _ in cases} == set(TARGETS)
    assert Counter(options["dtype"] for _, options in cases).keys() == {"float32", "float16", "bfloat16"}
    assert {options["runs"][0] for _, options in cases} == set(RUNS)
