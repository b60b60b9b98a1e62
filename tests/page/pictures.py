"""The pages that CI keeps, and their pictures, wide and narrow, light and dark: `python -m tests.page.pictures FOLDER`.

Of the README's example, of a right kernel, of a strides survey and of 128 heads. A page that is in the folder stays.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

from gradprobe.pipeline.reported import report_of
from gradprobe.render.page import page_of
from tests.emulated import case_of, changed, softmax, target_of
from tests.page.browser import executable, opened, started
from tests.page.made import ROOT, saved
from tests.probe import probe

README = re.compile(r"^    (sed .+)\n    (gradprobe check .+)$", re.MULTILINE)
RIGHT = "gradprobe check --heads 4 --causal"


def of_the_readme(file: Path) -> None:
    """By the words of the README, in a folder of its own beside the file."""
    found = README.search((ROOT / "README.md").read_text())
    assert found is not None
    folder = file.parent / "readme"
    folder.mkdir(exist_ok=True)
    edit, check = found.groups()
    edited = edit.replace("kernels/", f"{ROOT}/kernels/")
    how = os.environ | {"GRADPROBE_FIX_BUDGET": "120"}  # however busy the machine is
    words = f"{edited}\n{check} --html {file}"
    subprocess.run(words, shell=True, cwd=folder, env=how, check=False, stdout=subprocess.DEVNULL)


def of_a_right_kernel(file: Path) -> None:
    subprocess.run(f"{RIGHT} --html {file}", shell=True, check=True, stdout=subprocess.DEVNULL)


def of_a_survey(file: Path) -> None:
    file.write_text(page_of(saved("strides")))


def of_128_heads(file: Path) -> None:
    """dS is wrong behind row 20 of every third head. Why is not asked."""

    def target(q, k, v, do, *, causal=False, scale=None):
        return softmax(
            q,
            k,
            v,
            do,
            causal=causal,
            scale=scale,
            fault=changed("dS", lambda ds: ds[:, ::3, 20:].mul_(1.1)),
        )

    case = case_of(
        "softmax",
        batch=1,
        heads=128,
        seqlen=64,
        head_dim=8,
        causal=True,
        layouts=(("q", "contiguous"),),
    )
    file.write_text(page_of(report_of(probe(case, target_of(target), why=False))))


PAGES = {
    "readme": of_the_readme, "right": of_a_right_kernel, "strides": of_a_survey, "heads-128": of_128_heads
}  # fmt: skip


def pictures(folder: Path) -> None:
    """Four pictures of each page, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder.resolve() / f"{name}.html" for name in PAGES}
    for name, file in files.items():
        if not file.exists():
            PAGES[name](file)
    browser = executable()
    if browser is None:
        print("no browser is there: no pictures were taken", file=sys.stderr)
        return
    with started(browser) as made:
        for file, width, scheme in product(files.values(), (1280, 400), ("light", "dark")):
            with opened(made, file, width=width, scheme=scheme) as page:
                page.screenshot(path=folder / f"{file.stem}-{width}-{scheme}.png", full_page=True)


if __name__ == "__main__":
    pictures(Path(sys.argv[1]))
