"""[tool.gradprobe]: which file has it, what its keys become, and what each error names."""

import os
from pathlib import Path

import pytest

from gradprobe.commands.configuration import settings as table_module
from gradprobe.commands.configuration.settings import nearest_table, settings_of
from gradprobe.model.failures import UsageFailure


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(text, place="pyproject.toml"):
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).write_text(text)
    return settings_of(nearest_table(Path.cwd()))


def refused(text):
    with pytest.raises(UsageFailure) as caught:
        settings(text)
    return f"{caught.value} | {caught.value.way_out}"


def test_every_key_becomes_what_the_command_line_would_hold():
    found = settings("""
[tool.gradprobe]
targets = ["kernels/mine.py:backward", "lazy", "package.module:f"]
layouts = ["contiguous", "do=expanded", "q=blhd,do=blhd"]
strict = true
timeout = 60
family = "softmax"
reference = "mine_reference.py:backward"

[tool.gradprobe.cases.gqa]
heads = 4
kv-heads = 2
head_dim = 40
softcap = 3
scale = 0.25
causal = true
bias = false
window = [45, -1]
dtype = "float16"
layout = "do=blhd"

[tool.gradprobe.cases.lazy]
targets = ["lazy"]
tau = [-0.5, 1]
seqlens = "20,10"
seed = "7"
strict = false
family = "lazy"
inputs = "sets/1.npz"
""")
    assert found.top.targets == ("kernels/mine.py:backward", "lazy", "package.module:f")
    runs = ["contiguous", "do=expanded", "q=blhd,do=blhd"]
    assert found.top.options == {"strict": True, "runs": runs}
    assert (found.timeout, found.top.family) == (60.0, "softmax")
    assert found.top.reference == "mine_reference.py:backward"
    assert list(found.cases) == ["gqa", "lazy"]
    assert found.cases["gqa"].options == {
        "heads": 4, "kv_heads": 2, "head_dim": 40, "softcap": 3.0, "scale": 0.25, "causal": True, "bias": False,
        "window": "45,-1", "dtype": "float16", "layout": ["do=blhd"],
    }  # fmt: skip
    assert isinstance(found.cases["gqa"].options["softcap"], float)
    assert found.cases["lazy"].targets == ("lazy",)
    assert found.cases["lazy"].family == "lazy"
    assert found.cases["lazy"].options == {
        "tau": "-0.5,1", "seqlens": "20,10", "seed": 7, "strict": False, "inputs": "sets/1.npz",
    }  # fmt: skip


def test_files_are_told_from_the_current_folder(folder, monkeypatch):
    text = (
        '[tool.gradprobe]\ntargets = ["a.py:f", "m:f"]\nreference = "b.py:g"\n'
        '[tool.gradprobe.cases.c]\ninputs="c.pt"\n'
    )
    (folder / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(folder / "deep" / "er")
    found = settings(text, str(folder / "pyproject.toml"))
    assert (found.top.targets, found.top.reference) == (("../../a.py:f", "m:f"), "../../b.py:g")
    assert found.cases["c"].options == {"inputs": "../../c.pt"}
    assert found.place == "../../pyproject.toml"


def test_the_nearest_file_that_has_the_table_is_taken_and_others_are_passed_by(
    folder, monkeypatch
):
    assert nearest_table(folder) is None
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.gradprobe]\ntimeout = 1\n")
    (folder / "a" / "pyproject.toml").write_text("[tool.ruff]\n")
    (folder / "a" / "b" / "pyproject.toml").write_text(
        '[project]\ndependencies = ["gradprobe"]\n'
    )
    monkeypatch.chdir(folder / "a" / "b")
    assert nearest_table(Path.cwd()).file == folder / "pyproject.toml"
    (folder / "a" / "pyproject.toml").write_text("[tool]\ngradprobe = {timeout = 2}\n")
    assert settings_of(nearest_table(Path.cwd())).timeout == 2
    (folder / "a" / "b" / "pyproject.toml").write_text("['tool'.\"gradprobe\"]\n")
    assert settings_of(nearest_table(Path.cwd())).timeout is None


def test_a_broken_file_is_told_only_where_it_means_this_tool(folder):
    (folder / "pyproject.toml").write_text('[project]\nname = "uses-gradprobe\n')
    assert nearest_table(folder) is None
    (folder / "pyproject.toml").write_text("[tool.gradprobe]\nstrict = yes\n")
    with pytest.raises(UsageFailure, match=r"pyproject.toml is not valid TOML: .*line 2"):
        nearest_table(folder)


def test_a_pyproject_that_cannot_be_read_is_refused_with_the_reason_and_the_way_out(folder):
    # which root cannot read either, from its beginning
    (folder / "pyproject.toml").symlink_to("/proc/self/mem")
    (folder / "below").mkdir()
    words = r"pyproject.toml: it may hold .* cannot be read, Input/output"
    with pytest.raises(UsageFailure, match=words) as refused:
        nearest_table(folder / "below")
    assert "make it readable" in refused.value.way_out
    (folder / "below" / "pyproject.toml").write_text("[tool.gradprobe]")
    assert nearest_table(folder / "below").content == {}


def test_without_a_reader_of_toml_only_a_project_that_needs_one_is_told(folder, monkeypatch):
    monkeypatch.setattr(table_module, "_reader", lambda: None)
    (folder / "pyproject.toml").write_text('[project]\ndependencies = ["gradprobe"]\n')
    assert nearest_table(folder) is None
    (folder / "pyproject.toml").write_text("[tool.gradprobe]\n")
    with pytest.raises(UsageFailure, match="this Python has no TOML reader") as caught:
        nearest_table(folder)
    assert caught.value.way_out.startswith("pip install tomli")


ERRORS = [
    ("[tool.gradprobe]\nstict = true", ("unknown key 'stict' in [tool.gradprobe] of ", "did you mean 'strict'?")),
    ("[tool.gradprobe]\nheads = 4", ("unknown key 'heads' in [tool.gradprobe] of ", "known: targets, layouts")),
    ("[tool.gradprobe.cases.c]\ntimeout = 2", ("unknown key 'timeout' in [tool.gradprobe.cases.c] of ",)),
    ("[tool.gradprobe.cases.c]\nhead-dim = 8\nhead_dim = 9", ("'head_dim' is set twice", "keep one")),
    ("[tool.gradprobe]\nstrict = 1", ("strict in [tool.gradprobe] of ", "must be true or false, got 1")),
    ("[tool.gradprobe]\ntargets = []", ("targets", "must be an array of strings, got []")),
    ("[tool.gradprobe]\ntargets = [1]", ("must be an array of strings, got [1]",)),
    ("[tool.gradprobe]\ntimeout = 0", ("timeout", "must be seconds above 0", "got 0")),
    ("[tool.gradprobe]\ntimeout = true", ("got True",)),
    ("[tool.gradprobe]\nfamily = 'hard'", ("family", "must be softmax or lazy, got 'hard'")),
    ("[tool.gradprobe]\nreference = 3", ("reference", "must be a string, got 3")),
    ("[tool.gradprobe]\nlayouts = ['dinstinct']", ("layouts in [tool.gradprobe]", "--runs takes TENSOR=NAME")),
    ("[tool.gradprobe]\ncases = 3", ("cases", "must hold tables")),
    ("[tool.gradprobe.cases]\ngqa = 3", ("cases", "must hold tables")),
    ("[tool]\ngradprobe = true", ("tool.gradprobe must be a table",)),
    ("[tool.gradprobe.cases.c]\nheads = '3x'", ("heads", "must be a whole number, got '3x'")),
    ("[tool.gradprobe.cases.c]\nheads = true", ("must be a whole number, got True",)),
    ("[tool.gradprobe.cases.c]\nsoftcap = [1]", ("softcap", "must be a number, got [1]")),
    ("[tool.gradprobe.cases.c]\nwindow = ['a', 'b']", ("window", "must be an array of numbers")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "pieces"), ERRORS, ids=[text.splitlines()[-1] for text, _ in ERRORS]
)
def test_an_error_names_the_key_its_table_and_what_came(text, pieces):
    told = refused(text)
    for piece in pieces:
        assert piece in told
    assert os.path.join(str(Path.cwd()), "pyproject.toml") in told
