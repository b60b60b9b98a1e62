import pytest

from gradprobe.commands.mutants import Gate
from gradprobe.model.failures import UsageFailure


@pytest.mark.parametrize(
    ("code", "own", "other"),
    [(0, "survived", "survived"), (1, "killed", "killed"), (2, "did_not_run", "killed"),
     (3, "did_not_run", "killed"), (-11, "did_not_run", "killed")],
)  # fmt: skip
def test_of_gradprobe_s_gate_only_1_is_a_kill_and_of_another_all_but_0(code, own, other):
    assert Gate.of("gradprobe check lazy").judged(code) == own
    assert Gate.of("pytest -q").judged(code) == other


OWN, OTHER = Gate.of("gradprobe check lazy"), Gate.of("pytest -q")


@pytest.mark.parametrize(
    ("gate", "said", "telling"),
    [
        (OWN, "MISMATCH  dP\nFIRST MISMATCH dP batch=0\n  more\n", "FIRST MISMATCH dP batch=0"),
        (OWN, "a note\ngradprobe: target fails\n  a way out\n", "gradprobe: target fails"),
        (OTHER, "..F\nFAILED test_x.py::test_y - assert\nFAILED z\n1 failed\n",
         "FAILED test_x.py::test_y - assert"),
        (OTHER, "one\ntwo\n\n", "two"), (OTHER, "", ""),
    ],
)  # fmt: skip
def test_a_gate_is_told_by_the_line_that_says_most(gate, said, telling):
    assert gate.telling(said) == telling


@pytest.mark.parametrize("words", ["", "pytest 'x"])
def test_a_command_that_is_none_is_refused(words):
    with pytest.raises(UsageFailure, match="--check"):
        Gate.of(words)
