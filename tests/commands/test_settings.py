from pathlib import Path

import pytest

from gradprobe.commands.settings import settings_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.failures import UsageFailure

TABLE = """
[tool.gradprobe]
targets = ["a.py:f", "b.py:f"]
layouts = ["distinct", "do=blhd"]
strict = true
timeout = 60
family = "lazy"

[tool.gradprobe.cases.small]
heads = 2
strict = false

[tool.gradprobe.cases.laid-out]
layout = ["q=blhd"]
targets = ["c.py:f", "a.py:f"]
family = "softmax"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(text, place="pyproject.toml"):
    Path(place).write_text(text)
    return settings_of(Path.cwd())


def request(target="other.py:f", **options):
    return CheckRequest(target, None, None, options)


def test_the_table_holds_for_any_check_and_its_family_for_its_own_targets():
    force = settings(TABLE)
    settled = force.over(request(heads=5))
    assert settled.options == {"heads": 5, "strict": True, "runs": ["distinct", "do=blhd"]}
    assert (settled.family, force.over(request("a.py:f")).family) == (None, "lazy")
    given = {"strict": False, "layout": ["q=blhd"]}
    assert force.over(request(**given)).options == given
    assert (force.timeout(None), force.timeout(3.0)) == (60, 3.0)


def test_configured_checks_are_every_target_on_every_case_target_by_target():
    plan = settings(TABLE).configured()
    titles = "a.py:f small,a.py:f laid-out,b.py:f small,c.py:f laid-out"
    assert ",".join(check.title for check in plan) == titles
    small, laid_out = plan[0].request, plan[1].request
    runs = ["distinct", "do=blhd"]
    assert small.options == {"heads": 2, "strict": False, "runs": runs}
    assert laid_out.options == {"layout": ["q=blhd"], "strict": True}
    assert (small.family, laid_out.family) == ("lazy", "softmax")


def test_targets_without_cases_have_the_default_case_and_a_case_needs_a_target():
    (only,) = settings('[tool.gradprobe]\ntargets = ["a.py:f"]\n').configured()
    assert (only.title, only.request) == ("a.py:f", request("a.py:f"))
    assert settings("[tool.gradprobe]\nstrict = true\n").configured() == []
    words = r"\[tool.gradprobe.cases.gqa\] of pyproject.toml has no target"
    with pytest.raises(UsageFailure, match=words):
        settings("[tool.gradprobe.cases.gqa]\nheads = 4\n").configured()


def test_every_key_becomes_what_the_command_line_would_hold():
    found = settings("""
[tool.gradprobe]
layouts = ["contiguous", "q=blhd,do=blhd"]
[tool.gradprobe.cases.gqa]
kv-heads = 2
head_dim = 40
softcap = 3
bias = false
window = [45, -1]
layout = "do=blhd"
tau = [-0.5, 1]
seed = "7"
""")
    assert found.top.options == {"runs": ["contiguous", "q=blhd,do=blhd"]}
    assert found.cases["gqa"].options == {
        "kv_heads": 2, "head_dim": 40, "softcap": 3.0, "bias": False, "window": "45,-1", "layout": ["do=blhd"],
        "tau": "-0.5,1", "seed": 7,
    }  # fmt: skip


def test_the_nearest_file_with_the_table_is_taken(folder, monkeypatch):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "pyproject.toml").write_text('[project]\nname = "uses-gradprobe\n')  # broken
    (folder / "a" / "b" / "pyproject.toml").write_text("[tool.ruff]\n")
    monkeypatch.chdir(folder / "a" / "b")
    assert settings_of(Path.cwd()).place == ""
    text = '[tool.gradprobe]\ntargets = ["a.py:f", "m:f"]\nreference = "b.py:g"\n'
    text += '[tool.gradprobe.cases.c]\ninputs="c.pt"\n'
    found = settings(text, str(folder / "pyproject.toml"))
    assert (found.top.targets, found.top.reference) == (("../../a.py:f", "m:f"), "../../b.py:g")
    assert found.cases["c"].options == {"inputs": "../../c.pt"}
    assert found.place == "../../pyproject.toml"


ERRORS = [
    ("[tool.gradprobe]\nstict = true", ("unknown key 'stict' in [tool.gradprobe] of ", "did you mean 'strict'?")),
    ("[tool.gradprobe.cases.c]\ntimeout = 2", ("unknown key 'timeout' in [tool.gradprobe.cases.c] of ",)),
    ("[tool.gradprobe]\ntargets = []", ("targets", "must be an array of strings, got []")),
    ("[tool.gradprobe]\ntimeout = 0", ("timeout", "must be seconds above 0", "got 0")),
    ("[tool.gradprobe]\ntimeout = true", ("got True",)),
    ("[tool.gradprobe]\nfamily = 'hard'", ("family", "must be softmax or lazy, got 'hard'")),
    ("[tool.gradprobe]\nlayouts = ['dinstinct']", ("layouts in [tool.gradprobe]", "--runs takes TENSOR=NAME")),
    ("[tool.gradprobe.cases]\ngqa = 3", ("cases", "must hold tables")),
    ("[tool]\ngradprobe = true", ("tool.gradprobe must be a table",)),
    ("[tool.gradprobe.cases.c]\nhead-dim = 8\nhead_dim = 9", ("'head_dim' is set twice", "keep one")),
    ("[tool.gradprobe.cases.c]\nheads = '3x'", ("heads", "must be a whole number, got '3x'")),
    ("[tool.gradprobe.cases.c]\nwindow = ['a', 'b']", ("window", "must be an array of numbers")),
    ("[tool.gradprobe]\nstrict = yes", ("is not valid TOML", "line 2")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "pieces"), ERRORS)
def test_an_error_names_the_file_the_key_and_what_came(text, pieces):
    with pytest.raises(UsageFailure) as caught:
        settings(text)
    told = f"{caught.value} | {caught.value.way_out}"
    for piece in (*pieces, str(Path.cwd() / "pyproject.toml")):
        assert piece in told
