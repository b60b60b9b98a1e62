"""The site that mkdocs builds holds every place that SARIF's rules lead to."""

import os
import subprocess
import sys

import pytest
from lxml import html

from gradprobe.render.alerts import RULES
from tests.docs.examples import ROOT


@pytest.mark.nightly
def test_every_rule_has_its_place_in_the_built_pages(tmp_path):
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install '.[docs]'")
    command = [
        sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir",
        str(tmp_path),
    ]  # fmt: skip
    subprocess.run(
        command, cwd=ROOT, env={**os.environ, "DISABLE_MKDOCS_2_WARNING": "true"}, check=True
    )
    page = html.parse(tmp_path / "explain" / "index.html")
    assert {rule.id.lower() for rule in RULES} <= {*page.xpath("//@id")}
