"""A check without ranks loads nothing of this folder."""

import subprocess
import sys

SCRIPT = """
import sys
from gradprobe.cli import main
sys.argv = ["gradprobe", "check", "plain.py", "--seqlen", "16", "--heads", "1", "--batch", "1", "--no-isolate"]
try:
    main()
finally:
    print("LOADED", *(name for name in sys.modules if name.startswith("gradprobe.sharded")))
"""
WRONG = """
import torch
def attention(q, k, v):
    return 1.1 * (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
"""


def test_a_failing_check_without_ranks_loads_none_of_it(tmp_path):
    (tmp_path / "plain.py").write_text(WRONG)
    command = [sys.executable, "-c", SCRIPT]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (1, "LOADED"), ran.stdout + ran.stderr
