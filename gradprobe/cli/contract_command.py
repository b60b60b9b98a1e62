"""`gradprobe contract`: a kernel's arithmetic, read off its bits."""

from __future__ import annotations

from typing import Any

import typer

from ..inputs.history import CheckRequest
from ..render.terminal import dump, show, width
from . import shared_options as shared
from .error_output import failures_told
from .own_process import apart


@shared.with_case_options
def contract(
    target: shared.Target = None,
    family: shared.Family = None,
    json_file: shared.JsonFile = None,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Read a kernel's arithmetic off its bits: what it rounds before each product, and in what it adds up.

    It runs on values of which a right kernel rounds nothing but its sums, and on normal ones. Every known way to
    compute O, dQ, dK and dV is worked out on them, and the ways that give each bit are told. By default one head of 512
    rows and keys. The exit code is 1 where no way fits.
    """
    request = shared.request_of(target, family, options)
    with failures_told(json_file, request.command("contract"), show_traceback, request.target):
        shared.refuse_wrong_words(request)
        how = (request, json_file)
        raise typer.Exit(apart(_read, *how, target=request.target, isolate=isolate, show_traceback=show_traceback))


def _read(request: CheckRequest, json_file: str | None) -> int:
    """Reads the contract and shows it; the exit code."""
    from ..commands.contract_request import read_contract, render_contract

    read = read_contract(request)
    dump(json_file, read.as_json())
    if json_file != "-":
        show(render_contract(read, width()))
    return 0 if not read.contract.unread else 1
