"""What a target takes is found out where the case did not fix it, told, and never against what was given."""

import pytest

from tests.cli.command import checked, run
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("without_causes")

WRITTEN = """
import torch

def attend(q, k, v, causal=False, scale=None):
    s = (q @ k.mT).float() * (scale or q.shape[-1] ** -0.5)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    return (s.softmax(-1) @ v.float()).to(q.dtype)

def causal_with_a_fault_in_head_2(q, k, v):
    return torch.cat([attend(q[:, :2], k[:, :2], v[:, :2], True), attend(q[:, 2:], k[:, 2:] * 1.1, v[:, 2:], True)], 1)

def blhd(q, k, v, causal):
    return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal).transpose(1, 2)

def causal_blhd(q, k, v):
    return blhd(q, k, v, True)

def three_axes(q, k, v):
    h, l, d = q.shape
    return attend(q, k, v)

def fussy(q, k, v, causal):
    assert q.is_cuda, "tensors must lie on the GPU"
    assert q.shape[-1] in (64, 128)
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError("only fp16 and bf16")
    if q.shape[2] % 128:
        raise ValueError("length must be a multiple of 128")
    return attend(q, k, v, causal)

def whole_blocks(q, k, v):
    o = torch.zeros_like(q)
    rows = q.shape[2] // 64 * 64
    o[:, :, :rows] = attend(q[:, :, :rows], k, v)
    return o

def spoiling(q, k, v):
    o = whole_blocks(q, k, v)
    if q.shape[2] % 64:
        q.data.zero_()  # as a store beyond the last block may do
    return o

def refuses_the_length(q, k, v):
    if q.shape[2] < 1000 and q.shape[2] > 10:
        raise ValueError("no block is that long")
    return attend(q, k, v)

def of_base_2(q, k, v, do, lse):
    s = q @ k.mT * (q.shape[-1] ** -0.5 * 1.4426950408889634)
    p = torch.exp2(s - lse[..., None])
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return {"dQ": ds @ k, "dK": ds.mT @ q, "dV": p.mT @ do}

def of_base_2_as_the_tutorial_calls_it(q, k, v, do, M):
    return of_base_2(q, k, v, do, M)

"""
SMALL = "--batch 1 --runs contiguous --no-recover"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forms.py").write_text(WRITTEN)
    return tmp_path


@sampled(
    "target, flags",
    [
        ("causal_blhd", "--shapes blhd --implied causal"),
        ("three_axes", "--shapes hld"),
        ("of_base_2_as_the_tutorial_calls_it", "--lse-as log2"),
        ("fussy", "--as-cuda --head-dim 64 --dtype float16 --seqlen 128"),
    ],
    push=2,
)
def test_what_is_found_matches_and_stands_in_the_notes_and_in_the_command_that_repeats_it(
    target, flags
):
    small = "" if target == "three_axes" else "--heads 2"
    code, report = checked(f"forms.py:{target} {SMALL} {small}")
    assert (code, report["verdict"]) == (0, "match")
    for flag in flags.strip("-").split(" --"):
        assert any(f"--{flag}" in note for note in report["notes"])
    given = f"gradprobe check forms.py:{target} {SMALL} {small}".split()
    assert {*flags.split()} == {*report["reproduce"].split()} - {*given}
    again = run(report["reproduce"].partition("gradprobe ")[2])
    assert (again.code, "found by trying" in again.out) == (0, False)


def test_a_refusal_is_told_in_its_own_words():
    _, report = checked(
        f"forms.py:fussy {SMALL} --heads 1 --as-cuda --dtype float16 --seqlen 128"
    )
    assert report["notes"][0] == (
        "head dim 24 was refused (AssertionError: forms.py:25: assert q.shape[-1] in (64, 128)): it runs with "
        "--head-dim 64, found by trying"
    )


@pytest.mark.parametrize("given", ["--dtype float32", "--no-as-cuda", "--seqlen-q 100"])
def test_an_option_that_was_given_is_never_changed(given):
    ran = run(f"check forms.py:fussy {SMALL} --heads 1 {given}")
    assert (ran.code, ran.out) == (3, "")


def test_an_lse_to_base_2_is_a_fault_where_its_name_does_not_say_it_and_an_option_where_it_is_meant():
    code, report = checked(f"forms.py:of_base_2 {SMALL} --heads 1")
    assert (code, report["case"]["lse_as"]) == (1, "natural")
    assert checked(f"forms.py:of_base_2 {SMALL} --heads 1 --lse-as log2")[0] == 0


def test_a_fault_stays_one_under_the_meaning_that_was_found():
    code, report = checked(f"forms.py:causal_with_a_fault_in_head_2 {SMALL}")
    assert (code, report["case"]["causal"]) == (1, True)
    assert report["first_mismatch"]["head"] == 2
    assert (
        "it is always causal, found by trying (--implied causal): 67% of its results are right so, 1% otherwise"
        in (report["notes"])
    )


def test_lengths_that_are_wrong_and_not_refused_stay_a_mismatch_and_it_is_said_where_it_is_right():
    code, report = checked(f"forms.py:spoiling {SMALL} --heads 1 --head-dim 8")
    assert report["runs"][0]["memory"]
    assert (code, report["case"]["seqlen_q"]) == (1, 72)
    assert report["known"][0] == (
        "contiguous, it is right at --seqlen 128: it takes multiples of a block, and does not refuse other lengths"
    )


def test_tensors_of_other_axes_that_a_target_only_runs_on_are_not_what_it_takes():
    ran = run(f"check forms.py:refuses_the_length {SMALL} --heads 2")
    assert (ran.code, ran.out) == (3, "")
    assert "raised ValueError (contiguous): no block is that long" in ran.err
