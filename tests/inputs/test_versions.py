"""Versions of other packages: those that gradprobe is tested with run, and others are refused before anything does."""

import re

import pytest

from gradprobe.inputs import versions
from gradprobe.model.failures import UntestedVersion
from gradprobe.testing import report_on
from tests.cli.command import ROOT, run

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

REQUIRED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
WANTED = "pip install 'torch>=2.11,<2.16' 'triton>=3.6,<3.10' 'numpy>=1.26,<2.6', or go on with --untested"


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Puts packages of given versions, as far as metadata goes, before those that are installed."""
    import triton.backends  # noqa: F401 - it lists them, by metadata, when it is first imported

    def install(**packages):
        for name, version in packages.items():
            needs = (
                [f"Requires-Dist: {need}\n" for need in REQUIRED] if name == "gradprobe" else []
            )
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir(exist_ok=True)
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{''.join(needs)}"
            )
        monkeypatch.syspath_prepend(tmp_path)
        versions.untested.cache_clear()
        return f"{tmp_path}:{ROOT}"

    yield install
    versions.untested.cache_clear()


INSIDE = {"gradprobe": "0.1.0", "torch": "2.11.0a0+git12", "triton": "3.9.0", "numpy": "1.26.0"}


@pytest.mark.parametrize("given", [{}, {"torch": "2.15.9+cpu"}, {"torch": "2.15.0.dev20260101"}])
def test_every_release_within_the_bounds_is_taken_builds_of_it_too(pretend, given):
    pretend(**INSIDE | given)
    versions.refuse_untested()


OUTSIDE = "outside what gradprobe is tested with, "


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"torch": "2.10.1+cpu"}, f"torch 2.10.1+cpu: {OUTSIDE}torch>=2.11,<2.16"),
        (
            {"torch": "2.9", "triton": "3.10.0"},
            f"torch 2.9 and triton 3.10.0: {OUTSIDE}torch>=2.11,<2.16 and triton>=3.6,<3.10",
        ),
    ],
)
def test_any_other_release_is_refused_with_what_pip_is_to_be_told(pretend, given, said):
    pretend(**INSIDE | given)
    with pytest.raises(UntestedVersion) as refused:
        versions.refuse_untested()
    found = str(refused.value), refused.value.way_out, refused.value.exit_code
    assert found == (said, WANTED, 3)
    # pytest shows no more than the message
    with pytest.raises(UntestedVersion, match=re.escape(WANTED)):
        report_on("no such target")


@pytest.mark.parametrize("words", ["check lazy", "sweep", "lint", "run --watch a:b -- true"])
def test_every_command_that_runs_a_target_exits_3_outside_of_them(words, pretend):
    pretend(**INSIDE | {"torch": "2.10.0"})
    ran = run(words)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"gradprobe: torch 2.10.0: {OUTSIDE}torch>=2.11,<2.16\n  {WANTED}\n"


def test_untested_goes_on_and_the_report_says_so(pretend, tmp_path, monkeypatch):
    pretend(**INSIDE | {"torch": "2.10.0"})
    monkeypatch.chdir(tmp_path)
    ran = run("check flash --untested --heads 1 --batch 1 --seqlen 16 --json report.json")
    assert ran.code == 0, ran.err
    assert f"torch 2.10.0: {OUTSIDE}torch>=2.11,<2.16" in (tmp_path / "report.json").read_text()
