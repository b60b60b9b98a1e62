"""`make versions` names tests that are there."""

import ast
from pathlib import Path

from tests.versions import ROOT, SUITE


def test_every_test_that_runs_with_each_release_exists():
    for place in (place for tests in SUITE.values() for place in tests):
        file, _, name = place.partition("::")
        functions = {
            node.name
            for node in ast.parse(Path(ROOT, file).read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        assert not name or name in functions, place
