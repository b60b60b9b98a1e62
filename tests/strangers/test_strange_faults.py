"""Kernels in styles of their own match, and of faults that no list holds none is missed or called something else."""

import pytest

from gradprobe.model.run import MATCH, MISMATCH
from gradprobe.pipeline.probe import probe
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.strangers.faults import FAULTS, STRANGERS, file_of

# One whole tile and a tail, laid as no program would lay them by chance.
SMALL = {"head_dim": 8, "causal": True, "layouts": (("all", "distinct"),)}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_kernel_of_another_style_matches(name):
    function, options = STRANGERS[name]
    lengths = {option: 20 for option in options if option.startswith("seqlen")}
    fewer = {"heads": 2, "kv_heads": 1} if "kv_heads" in options else {}
    report = probe(softmax_case(**options | lengths | fewer | SMALL), find_target(f"{file_of(name)}:{function}"))
    assert report.verdict == MATCH


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_kernel_of_another_style_matches_in_every_default_layout(name, causal):
    function, options = STRANGERS[name]
    report = probe(softmax_case(**options | {"causal": causal}), find_target(f"{file_of(name)}:{function}"))
    assert report.verdict == MATCH


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_lies_in_lines_of_its_own_function(fault):
    source = fault.plant()
    assert source != file_of(fault.of).read_text()
    start = source.index(f"def {fault.edit.kernel}(")
    first = source.count("\n", 0, start) + 1
    body = source[start : source.find("\n\n\n", start)]
    assert fault.lines <= set(range(first, first + body.count("\n") + 1))


# Those whose line is told; docs/strangers.md says what is told of the others.
LINED = {
    "dv_takes_do_of_the_next_tile", "sum_not_rescaled_in_whole_tiles", "softcap_off_by_its_flag_on_the_diagonal",
    "p_and_dp_swapped_in_one_call", "delta_of_the_first_head_of_the_group",
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_no_list_holds_is_found_and_its_line_told(fault, tmp_path):
    copy = tmp_path / f"{fault.name}.py"
    copy.write_text(fault.plant())
    report = probe(softmax_case(**fault.options), find_target(f"{copy}:{fault.function}"))
    assert report.verdict == MISMATCH
    if fault.name in LINED:
        assert fault.lines & {where.line for where in report.diagnoses[0].where}
