"""What is listed of a file costs in proportion to its functions: the file is imported and read once."""

import sys

import pytest

from gradprobe.commands.target_list import found_in

LOADED = "import loads\nloads.COUNT += 1\nimport torch\n"
FUNCTION = "def f{0}(q, k, v, do, *, causal=False):\n    return q\n"
METHOD = (
    "class F{0}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, q, k, v):\n        return q\n"
    "attend{0} = F{0}.apply\n"
)


@pytest.fixture
def calls_of(tmp_path, monkeypatch):
    """How many calls of functions it takes to list a file of so many, and how often that is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loads.py").write_text("COUNT = 0\n")

    def calls(text, count):
        functions = (text.format(at) for at in range(count))
        (tmp_path / f"of_{count}.py").write_text(LOADED + "".join(functions))
        import loads

        loads.COUNT, made = 0, []
        sys.setprofile(lambda frame, event, of: made.append(event))
        try:
            found = found_in(f"of_{count}.py")
        finally:
            sys.setprofile(None)
        assert (len(found.targets), loads.COUNT) == (count, 1)
        return len(made)

    yield calls
    sys.modules.pop("loads", None)


@pytest.mark.parametrize("text", [FUNCTION, METHOD], ids=["functions", "autograd.Functions"])
def test_twice_as_many_functions_take_twice_as_many_calls_and_one_import(calls_of, text):
    calls_of(text, 1)  # what is imported late is
    few, many, most = (calls_of(text, count) for count in (20, 40, 80))
    assert most - many <= 2.1 * (many - few)
