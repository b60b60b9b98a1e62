"""What several attacks begin with: the report of a mismatch with its place, cause, tried edit and findings."""

import pytest

from tests.cli.command import ROOT, run

CASE = "mine.py:delta --batch 1 --heads 2 --seqlen 16"


@pytest.fixture(scope="session")
def failing_folder(tmp_path_factory):
    """A folder with a target, mine.py, and the report of a check of it, right.json."""
    folder = tmp_path_factory.mktemp("failing")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "mine.py").write_text((ROOT / "examples" / "delta.py").read_text())
        assert run(f"check {CASE} --json right.json").code == 1
    return folder
