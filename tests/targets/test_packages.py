"""A file of a package is a target as it stands: its imports are those of the package, relative or not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCALED = "def scaled(x):\n    return 2 * x\n"
LOOK = """
import sys
from gradprobe.targets.find import find_target
target = find_target(sys.argv[1])
print(target.function(0.5, None, None), target.source.shadows)
"""


@pytest.mark.nightly
def test_its_imports_are_those_of_its_package(tmp_path):
    file = tmp_path / "kernels/flash/attention.py"
    file.parent.mkdir(parents=True)
    for name in ("kernels/__init__.py", "kernels/flash/__init__.py"):
        (tmp_path / name).touch()
    (file.parent / "ops.py").write_text(SCALED)
    # Where its folder stood first on the search path, the standard library's imports would end here.
    (file.parent / "random.py").write_text("raise ImportError('this is not the one meant')")
    file.write_text(
        "import random\nfrom .ops import scaled\n\n\ndef attention(q, k, v):\n    return scaled(q)\n"
    )
    command = [sys.executable, "-c", LOOK, "kernels/flash/attention.py:attention"]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ran.stdout.split() == ["1.0", "()"], ran.stderr
