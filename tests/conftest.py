"""Chooses Triton's interpreter before any test imports triton, and one thread: the tensors here are small."""

import sys

import pytest

from gradprobe.running.backend import prepare_backend

prepare_backend("auto")


def pytest_configure(config):  # noqa: ARG001
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch):
    """A target's folder is put on the search path, where another test's target of the same name would be found."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def pytest_terminal_summary(terminalreporter):
    """The figures that tests came to, also those of other processes."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(value)


def pytest_collection_modifyitems(items):
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
