"""Flags win over the environment, the environment over the table; and one line says what is in force."""

from pathlib import Path

import pytest

from gradprobe.commands.configuration.effective import configured, effective_settings
from gradprobe.commands.configuration.settings import options_of, timeout_of, variable_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.options import OPTIONS
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
    for option in OPTIONS:
        monkeypatch.delenv(variable_of(option.name), raising=False)
    monkeypatch.delenv("GRADPROBE_TIMEOUT", raising=False)
    (tmp_path / "pyproject.toml").write_text(TABLE)
    return tmp_path


def request(target="other.py:f", **options):
    return CheckRequest(target, None, None, options)


def test_the_table_holds_for_any_check_and_its_family_for_its_own_targets():
    force = effective_settings(Path.cwd())
    settled = force.over(request(heads=5))
    assert settled.options == {"heads": 5, "strict": True, "runs": ["distinct", "do=blhd"]}
    assert (settled.family, force.over(request("a.py:f")).family) == (None, "lazy")
    assert force.timeout(None) == 60
    assert force.line({"heads": 5}, None) == (
        "[tool.gradprobe] of pyproject.toml: layouts distinct and do=blhd, strict, timeout 60 s"
    )


def test_the_environment_wins_over_the_table_and_flags_over_both(monkeypatch):
    monkeypatch.setenv("GRADPROBE_STRICT", "0")
    monkeypatch.setenv("GRADPROBE_HEADS", "4")
    monkeypatch.setenv("GRADPROBE_TIMEOUT", "7.5")
    force = effective_settings(Path.cwd())
    expected = {"strict": False, "heads": 4, "runs": ["distinct", "do=blhd"]}
    assert force.over(request()).options == expected
    assert force.over(request(strict=True, heads=9)).options["strict"] is True
    assert force.over(request(heads=9)).options["heads"] == 9
    assert (force.timeout(None), force.timeout(3.0)) == (7.5, 3.0)
    assert force.line({}, None) == (
        "[tool.gradprobe] of pyproject.toml: layouts distinct and do=blhd; "
        "GRADPROBE_HEADS is set; GRADPROBE_STRICT is set; GRADPROBE_TIMEOUT is set"
    )
    assert force.line({"heads": 9, "strict": True, "layout": ["q=blhd"]}, 3.0) is None


def test_configured_checks_are_every_target_on_every_case_target_by_target(monkeypatch):
    monkeypatch.setenv("GRADPROBE_DEVICE", "cpu")
    plan = configured(effective_settings(Path.cwd()))
    assert [one.title for one in plan] == [
        "a.py:f small", "a.py:f laid-out", "b.py:f small", "c.py:f laid-out",
    ]  # fmt: skip
    small, laid_out = plan[0].request, plan[1].request
    runs = ["distinct", "do=blhd"]
    assert small.options == {"device": "cpu", "heads": 2, "strict": False, "runs": runs}
    assert laid_out.options == {"device": "cpu", "layout": ["q=blhd"], "strict": True}
    assert (small.family, laid_out.family) == ("lazy", "softmax")


def test_targets_without_cases_have_the_default_case_and_a_case_without_a_target_is_an_error(
    folder,
):
    table = folder / "pyproject.toml"
    table.write_text('[tool.gradprobe]\ntargets = ["a.py:f"]\n')
    (only,) = configured(effective_settings(folder))
    assert (only.title, only.request) == ("a.py:f", request("a.py:f"))
    table.write_text("[tool.gradprobe]\nstrict = true\n")
    assert configured(effective_settings(folder)) == []
    table.write_text("[tool.gradprobe.cases.gqa]\nheads = 4\n")
    words = r"\[tool.gradprobe.cases.gqa\] of pyproject.toml has no target"
    with pytest.raises(UsageFailure, match=words):
        configured(effective_settings(folder))


def test_every_case_option_has_a_variable_and_words_are_read_as_flags_are():
    environment = {
        "GRADPROBE_HEADS": "4", "GRADPROBE_SOFTCAP": "2.5", "GRADPROBE_CAUSAL": "off", "GRADPROBE_RECOVER": "1",
        "GRADPROBE_WINDOW": "5,-1", "GRADPROBE_LAYOUT": "do=blhd q=offset", "GRADPROBE_DTYPE": "", "HEADS": "9",
    }  # fmt: skip
    assert options_of(environment) == {
        "heads": 4, "causal": False, "window": "5,-1", "softcap": 2.5, "layout": ["do=blhd", "q=offset"],
        "recover": True,
    }  # fmt: skip
    assert len({variable_of(option.name) for option in OPTIONS}) == len(OPTIONS)
    assert timeout_of({}) is None


@pytest.mark.parametrize(
    ("variable", "text", "piece"),
    [
        ("GRADPROBE_HEADS", "four", "must be a whole number, got 'four'"),
        ("GRADPROBE_WINDOW", "5", "--window takes two whole numbers"),
        ("GRADPROBE_TIMEOUT", "soon", "must be seconds, got 'soon'"),
    ],
)
def test_a_bad_value_names_the_variable(variable, text, piece, monkeypatch):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageFailure) as caught:
        effective_settings(Path.cwd())
    assert f"the environment variable {variable}" in str(caught.value)
    assert piece in str(caught.value)
