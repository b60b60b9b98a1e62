"""What compute-sanitizer prints, as findings: each once, with the line of the kernel."""

import sys

import pytest

from gradprobe.pipeline.sanitizer import TOOLS, findings_in, strays_under

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 4 bytes
=========     at flash_dkdv+0x2f30 in /kernels/flash.cu:416
=========     by thread (0,0,0) in block (2,0,0)
=========     Access at 0x2b80 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x397f1c] in libcuda.so.1
=========
========= Invalid __shared__ read of size 4 bytes
=========     at flash_dkdv+0x2f30 in /kernels/flash.cu:416
=========     by thread (1,0,0) in block (2,0,0)
=========     Access at 0x2b84 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at flash_dq+0x1f60 in /kernels/flash.cu:331
=========     and Write access at flash_dq+0x8b0 in /kernels/flash.cu:80 [12288 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""


def test_an_access_outside_is_one_finding_with_its_kernel_and_line():
    (found,) = findings_in(MEMCHECK, TOOLS["memcheck"])
    assert (found.kind, found.kernel, found.file, found.line) == ("outside", "flash_dkdv", "/kernels/flash.cu", 416)
    assert found.sentence.startswith("Invalid __shared__ read of size 4 bytes. at flash_dkdv")
    assert "by thread (0,0,0) in block (2,0,0)" in found.sentence
    assert "Host Frame" not in found.sentence


def test_a_race_names_both_accesses():
    (found,) = findings_in(RACECHECK, TOOLS["racecheck"])
    assert (found.kind, found.kernel, found.line) == ("race", "flash_dq", 331)
    assert "and Write access at flash_dq+0x8b0 in /kernels/flash.cu:80" in found.sentence


def test_what_it_says_of_itself_is_no_finding():
    assert list(findings_in(CLEAN, TOOLS["initcheck"])) == []


@pytest.mark.parametrize(("tool", "is_told"), [("initcheck", False), ("memcheck", True)])
def test_initcheck_watches_every_kernel_since_it_knows_of_no_value_that_another_wrote(tmp_path, tool, is_told):
    """Of what it finds, what has a line is told: torch's own kernels have none."""
    program, asked = tmp_path / "sanitizer", tmp_path / "asked"
    log = MEMCHECK.replace("flash_dkdv+0x2f30 in /kernels/flash.cu:416", "fill+0x2f30") + MEMCHECK
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\npathlib.Path({str(asked)!r}).write_text(' '.join(sys.argv))\n"
        f"pathlib.Path(sys.argv[sys.argv.index('--log-file') + 1]).write_text({log!r})\n"
    )
    program.chmod(0o755)
    found = strays_under(str(program), tool, ["check", "flash-cuda"], ["flash_dkdv<64>"])
    assert [finding.kernel for finding in found] == (["", "flash_dkdv"] if is_told else ["flash_dkdv"])
    assert ("kernel_substring=flash_dkdv" in asked.read_text()) is is_told
