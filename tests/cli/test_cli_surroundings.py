"""What a target leaves changed in its process is its own affair: it is judged without, and nothing else is moved."""

import json

import pytest

from tests.cli.command import SMALL, run_process

RUDE = """
import math, os, sys, warnings
import torch
from soft import backward

print("spoken at the import")
os.chdir("/")
os.close(1)
torch.set_default_device("meta")
torch.set_default_dtype(torch.float16)
torch.set_num_threads(3)
torch.set_grad_enabled(False)
torch.exp = torch.softmax = torch.zeros_like = torch.einsum = torch.matmul = None
torch.Tensor.__matmul__ = lambda self, other: torch.bmm(self.flatten(0, 1), other.flatten(0, 1)).unflatten(
    0, self.shape[:2])
math.sqrt = None
warnings.simplefilter("error")
sys.setrecursionlimit(200)
sys.stdout.close()
made = torch.empty(1)

def f(q, k, v, do, *, scale):
    assert (os.getcwd(), made.device.type, torch.empty(1).dtype) == ("/", "meta", torch.float16)
    assert torch.matmul is None and torch.get_num_threads() == 3
    os.write(2, b"spoken in a call\\n")
    os.close(2)
    results = backward(q, k, v, do, scale=scale)
    torch.set_default_dtype(torch.float16)
    results["dQ"] *= 1.01
    return results
"""


@pytest.mark.nightly
def test_a_target_that_changes_all_it_can_is_judged_as_any_other_and_finds_all_as_it_left_it(
    folder,
):
    (folder / "rude.py").write_text(RUDE)
    ran = run_process(f"check rude.py:f {SMALL} --json - --sarif rude.sarif")
    assert ran.code == 1, ran.err
    report = json.loads(ran.out)
    assert [run["verdict"] for run in report["runs"]][:3] == ["mismatch"] * 3
    found = [one for run in report["runs"] for one in run["intermediates"]]
    assert {one["name"] for one in found if one["mismatched"]} == {"dQ"}
    begins = "the target changes, for all of its process, "
    (note,) = [note for note in report["notes"] if note.startswith(begins)]
    assert note.startswith(f"{begins}math.sqrt, torch.Tensor.__matmul__, ")
    assert note.endswith(
        "the default dtype, whether gradients are recorded: it is judged without"
    )
    assert "spoken at the import\n" in ran.err
    assert (folder / "rude.sarif").exists()
