"""What is found of a head is the same wherever its elements are."""

import pytest

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.sieve import LargeRun, LargeRuns
from gradprobe.runtime.run import Trace
from tests.emulated import Arithmetic, case_of, ran

pytestmark = pytest.mark.gpu


def test_what_passes_the_sieve_there_has_ratios_that_are_not_too_small():
    sizes = {"batch": 2, "heads": 2, "seqlen": 300, "head_dim": 64}
    case = case_of("softmax", **sizes, dtype="bfloat16", causal=True)
    values = draw(case)
    came = ran(case, Arithmetic(tensor_core=True, delta_from_o=True), values=values)
    there = {name: value.to("cuda") for name, value in values.items()}
    trace = Trace({name: value.to("cuda") for name, value in came.values.items()}, came.sources)
    run_there = LargeRun(case, there, trace, precision_of("bfloat16", "ieee"))
    passed = LargeRuns().compared(run_there, lambda: pytest.fail("all of it was compared"))
    whole = compare(case, attention_of(case, there), trace, precision_of("bfloat16", "ieee"))
    for name, finding in passed.findings.items():
        assert bool((finding.ratio >= whole.findings[name].ratio * (1 - 1e-9)).all()), name
