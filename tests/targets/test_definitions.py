import importlib

import pytest

from gradprobe.model.failures import UsageFailure
from gradprobe.targets.definitions import candidates, refuse_mistyped, with_function
from gradprobe.targets.naming import target_word
from tests.cli.command import SMALL, run

FILES = {
    "def f(Q, key_states, value, *, grad_out, is_causal=False): pass\ndef mean(x): pass": ["f"],
    "def f(q, k, v, do): pass\ndef g(q, k, v): pass": ["f", "g"],
    "def f(q, k, v, block_table): pass": [],
    "def f(q, k, v, block_table=None, **more): pass": ["f"],
    "def f(q, k, v, /): pass": [],
    "def _f(q, k, v): pass": [],
    "@triton.jit\ndef kernel(q, k, v): pass\ndef f(q, k, v): pass": ["f"],
    "class F(torch.autograd.Function):\n    def forward(ctx, q, k, v): pass": ["F"],
    "class F(Function):\n    def forward(q, k, v): pass\n    def setup_context(ctx, i, o): pass": ["F"],
    "class F(Function):\n    def forward(ctx, q, k, v): pass\nattend = F.apply": ["attend"],
    "class F(Function):\n    def forward(ctx, q, k, v): pass\ndef f(q, k, v): return F.apply(q, k, v)": ["f"],
    "class F(Function):\n    def forward(ctx, q, k, v): pass\ndef f(q, k, v): return MyF.apply(q, k, v)": ["F", "f"],
    "class F(Function):\n    def backward(ctx, do): pass": [],
    "class F(nn.Module):\n    def forward(self, q, k, v): pass": [],
    "if __name__ == '__main__':\n    def f(q, k, v): pass": [],
    "try:\n    import triton\nexcept ImportError:\n    pass\nelse:\n    def f(q, k, v): pass": ["f"],
    "def f(q, k, v": [],
}  # fmt: skip
AUTOGRAD = """
import torch

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = (q.shape[-1] ** -0.5 * q @ k.mT).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v.mT
        ds = q.shape[-1] ** -0.5 * p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ do
"""


def test_candidates_are_what_has_q_k_and_v_and_no_parameter_without_a_meaning(tmp_path):
    for at, (text, names) in enumerate(FILES.items()):
        (tmp_path / f"file{at}.py").write_text(text)
        assert candidates(tmp_path / f"file{at}.py") == names, text


def test_a_word_that_a_file_of_another_encoding_does_not_define_is_refused(tmp_path):
    file = tmp_path / "latin.py"
    file.write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\ndef f(q, k, v): pass\n")
    with pytest.raises(UsageFailure, match="has no function g"):
        refuse_mistyped(f"{file}:g")


def test_a_function_of_a_loop_has_no_word_by_which_another_process_would_find_its_last(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    text = "def f(q, k, v): pass\nfor g in (lambda q, k, v: 1, lambda q, k, v: 2): pass\n"
    (tmp_path / "bound_in_a_loop.py").write_text(text)
    module = importlib.import_module("bound_in_a_loop")
    assert target_word(module.f).endswith("bound_in_a_loop.py:f")
    assert not target_word(module.g)


def test_a_file_stands_for_its_only_candidate_and_every_other_word_for_itself(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text("def f(q, k, v): pass")
    (tmp_path / "two.py").write_text("def f(q, k, v): pass\ndef g(q, k, v): pass")
    words = {"one.py": "one.py:f"} | {
        word: word for word in ("two.py", "no.py", "one.py:g", "lazy")
    }
    assert {word: with_function(word) for word in words} == words


@pytest.mark.parametrize("word", ["attend.py", "attend.py:Attend.backward"])
def test_a_file_and_the_methods_of_an_autograd_function_lead_to_it(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attend.py").write_text(AUTOGRAD)
    ran = run(f"check {word} {SMALL} --layout contiguous")
    assert ran.code == 0, ran.err
    assert f"MATCH  attend.py:{word.partition(':')[2] or 'Attend'}" in ran.out
