"""Survey: a kernel's tiles by the names of its constants, and the files of what a target launches."""

from types import SimpleNamespace

import pytest
import torch

from gradprobe.commands.doctor.machine_survey import _tiles, survey_target
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem

SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 16, "device": "cpu"}


def test_tiles_are_of_rows_and_keys_and_not_of_head_dims():
    arguments = {"BLOCK_M": 64, "BLOCK_SIZE_KV": 16, "BLOCK_DMODEL": 128, "BLOCK_D": 256}
    arguments |= {"IS_CAUSAL": True, "BLOCK_N": None}
    assert sorted(_tiles(SimpleNamespace(constants=arguments))) == [16, 64]


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton interprets nothing in this process")
@pytest.mark.parametrize(
    ("word", "names"), [("flash", {"flash.py"}), ("flash-cuda", {"cuda_kernels.py", "flash.cu"})]
)
def test_the_files_of_a_target_and_of_its_kernels_are_told_with_the_kernels_that_it_launches(
    word, names
):
    survey = survey_target(resolve_problem(CheckRequest(word, None, None, SMALL)))
    assert {file.file.rpartition("/")[2] for file in survey.files} == names
    assert not any(file.stale for file in survey.files)
    kernels = {name for file in survey.files for name in file.kernels}
    assert len({name for name in kernels if "dq" in name}) == 1
    assert not {"load_tile", "soften"} & kernels
    assert survey.built.family == "softmax"
    assert set(survey.built.tensors) >= {"q", "k", "v", "do"}
