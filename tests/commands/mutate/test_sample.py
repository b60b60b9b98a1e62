"""Which mutants are drawn."""

from collections import Counter

import pytest

from gradprobe.commands.mutants import mutants_of, read_file, sampled
from tests.planted.planting import KERNELS


@pytest.mark.nightly
def test_forty_of_lazy_hold_every_class_about_alike_and_several_kinds_of_each_in_order():
    mutants = mutants_of(read_file(KERNELS / "lazy.py", "lazy_intermediates"))
    eleven = Counter(mutant.fault_class for mutant in sampled(mutants, 11, 0))
    assert {*eleven.values()} == {1}
    drawn = sampled(mutants, 40, 0)
    counts = Counter(mutant.fault_class for mutant in drawn)
    assert len(drawn) == 40
    assert counts == {
        "S1": 4, "S3": 4, "I64": 4, "M1": 4, "M2": 4, "M3": 4, "A": 4, "ACC": 4, "PREC": 4, "N2": 3, "N1": 1,
    }  # fmt: skip
    assert len({mutant.operator for mutant in drawn}) >= 18
    once, again, other = (sampled(mutants, 20, seed) for seed in (3, 3, 4))
    assert once == again != other
    drawn = sampled(mutants, 999, 0)
    assert len(drawn) == len(mutants) == 478
    assert [mutant.line for mutant in drawn] == sorted(mutant.line for mutant in mutants)
