"""What the interpreter accepts need not compile: the kernels are compiled for a GPU that need not be there."""

import os
import subprocess
import sys
from pathlib import Path

from tests.sampling import sampled

ROOT = Path(__file__).parents[2]


EVERY = [("lazy", "0"), ("lazy", "1 2 3"), ("flash", "0 1 2 3 4")]


@sampled("family, variants", EVERY, push=1)
def test_every_kernel_compiles_for_hopper_with_and_without_its_optional_inputs(
    tmp_path, family, variants
):
    environment = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    }
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    script = ROOT / "tests" / "kernels" / "compile_for_hopper.py"
    command = [sys.executable, script, family, *variants.split()]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(
        [line for line in ran.stdout.splitlines() if int(line.split()[-1]) > 1000]
    ) == 4 * len(variants.split())
