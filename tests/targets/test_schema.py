"""What torch calls by a schema is called by the names that the schema has: custom operators and modules."""

import textwrap

import torch

from gradprobe.targets.find import find_target

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


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

module = Attention()
"""


def test_each_is_called_by_its_names_as_any_other_function_is(tmp_path):
    (tmp_path / "operators.py").write_text(textwrap.dedent(WRITTEN))
    q, k, v, do = torch.randn(4, 1, 1, 5, 3).unbind()
    p = torch.softmax(q @ k.mT * 3**-0.5, -1)
    for name in ("operator", "module"):
        target = find_target(f"{tmp_path / 'operators.py'}:{name}")
        given = {"do": do} if target.is_backward else {}
        result = target.function(v=v, k=k, q=q, **given)
        found, expected = (result[2], p.mT @ do) if given else (result, p @ v)
        assert target.is_backward is ("module" not in name)
        assert torch.allclose(found, expected, atol=1e-6), name
