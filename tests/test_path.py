"""The path of a check in DESIGN.md: each file calls those that are set under it, in the order of the page."""

import re

from tests.traced import ROOT, calls_of

SMALL = [
    "--batch", "1", "--heads", "1", "--seqlen", "16", "--head-dim", "16", "--runs", "contiguous",
]  # fmt: skip


def steps_of(page: str) -> list[tuple[str, str]]:
    """The files of the path in order, each with the one that it is set under."""
    above: list[str] = []
    steps = []
    for indent, file in re.findall(r"^    ((?:  )*)([a-z_/]+\.py)\b", page, re.MULTILINE):
        above[len(indent) // 2 :] = [file]
        steps.append((above[-2] if len(above) > 1 else "", file))
    return steps


def test_each_file_of_the_path_calls_the_next(tmp_path):
    package, first = f"{ROOT}/gradprobe/", dict[tuple[str, str], float]()
    for call in calls_of(["check", "lazy", *SMALL], tmp_path):
        pair = call.caller.removeprefix(package), call.file.removeprefix(package)
        if call.function != "<module>":
            first[pair] = min(float(call.moment), first.get(pair, float("inf")))
    start, *steps = steps_of((ROOT / "DESIGN.md").read_text())
    assert (start, len(steps)) == (("", "cli/check_command.py"), 11)
    assert [step for step in steps if step not in first] == []
    assert sorted(steps, key=first.__getitem__) == steps
