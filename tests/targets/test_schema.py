"""What torch calls by a schema is called by the names that the schema has: custom operators and scripted functions."""

import textwrap

import pytest
import torch

from gradprobe.targets.find import find_target
from tests.cli.command import run

WRITTEN = """
import torch

def _back(q, k, v, do):
    p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return [ds @ k, ds.mT @ q, p.mT @ do]

@torch.library.custom_op("gradprobe_tests::back", mutates_args=())
def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, n: int = 1) -> list[torch.Tensor]:
    return _back(q, k, v, do)


@torch.jit.script
def scripted(q, k, v, do):
    back = _back(q, k, v, do)
    return back[0], back[1], back[2]

class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

class Positional(Attention):
    def forward(self, *args):
        return super().forward(*args)

module, scripted_module, positional = Attention(), torch.jit.script(Attention()), Positional()
"""


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_each_is_called_by_its_names_as_any_other_function_is(tmp_path):
    (tmp_path / "operators.py").write_text(textwrap.dedent(WRITTEN))
    q, k, v, do = torch.randn(4, 1, 1, 5, 3).unbind()
    p = torch.softmax(q @ k.mT * 3**-0.5, -1)
    for name in ("operator", "scripted", "scripted_module"):
        target = find_target(f"{tmp_path / 'operators.py'}:{name}")
        given = {"do": do} if target.is_backward else {}
        result = target.function(v=v, k=k, q=q, **given)
        found, expected = (result[2], p.mT @ do) if given else (result, p @ v)
        assert target.is_backward is ("module" not in name)
        assert torch.allclose(found, expected, atol=1e-6), name


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_module_without_names_is_refused_with_what_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "operators.py").write_text(textwrap.dedent(WRITTEN))
    ran = run("check operators.py:positional")
    assert (ran.code, ran.out) == (2, "")
    assert "takes *args; arguments are passed by name" in ran.err
    assert "  wrap it in a function that names them: def attention(q, k, v): " in ran.err
