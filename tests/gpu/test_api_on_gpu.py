import pytest
import torch

import gradprobe

pytestmark = pytest.mark.gpu


def attention(q, k, v, causal=False, scale=None):
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=causal, scale=scale)


def test_a_function_runs_on_the_gpu_in_this_process():
    case = {"dtype": torch.float16, "heads": 4, "head_dim": 64, "runs": "contiguous"}
    report = gradprobe.check(attention, device="cuda", **case)
    assert (report.verdict, report.case.device) == ("match", "cuda")


def test_a_word_is_compiled_in_a_process_of_its_own():
    case = {"dots": "ieee", "runs": "distinct", "fix_budget": 0}
    report = gradprobe.check("lazy", device=torch.device("cuda"), **case)
    assert (report.verdict, report.target.backend) == ("match", "triton")
