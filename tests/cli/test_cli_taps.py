"""`--tap` on a black box: the value that was asked for is the one that the report shows."""

import json

from tests.cli.command import ROOT, SMALL, run


def test_a_wrong_p_that_was_tapped_is_reported_as_tapped_beside_what_is_seen(folder):
    source = (ROOT / "kernels" / "triton" / "flash.py").read_text()
    (folder / "mine.py").write_text(source.replace("lse_ptr + h * stride_lseh", "lse_ptr"))
    tap = "--tap P=flash_dkdv_kernel:p[b,h,offs_m,offs_n]"
    ran = run(f"check mine.py:flash_black_box {tap} {SMALL} --seqlen 12 --runs contiguous --json -")
    found = {one["name"]: one for one in json.loads(ran.out)["runs"][0]["intermediates"]}
    assert ran.code == 1
    assert (found["P"]["source"], found["P"]["status"]) == ("tapped", "mismatch")
    of_dkdv = found["dS"]
    assert (of_dkdv["source"], of_dkdv["kernel"], of_dkdv["status"]) == ("seen", "flash_dkdv_kernel", "inherited")
