"""`gradprobe explain`: what a word of a report means."""

from __future__ import annotations

from typing import Annotated

import typer

from ..render.terminal import show, width
from .error_output import failures_told
from .shared_options import Traceback


def explain(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="WORD",
            help="A fault, a class of faults, a rule, an identity or a budget (default: all)",
        ),
    ] = None,
    show_traceback: Traceback = False,
) -> None:
    """Say what a word of a report means, how it looks, where it was seen for real, and what to try.

    A word is a fault ("stride/do-head", or its class "S1"), a rule ("GP010", "foreign"), an identity ("I3") or a
    budget ("tf32"). Without one, all are listed.
    """
    with failures_told(None, "gradprobe explain", show_traceback, runs=False):
        from ..render.topic import render_list, render_topics, topics_of

        show(render_list(width()) if word is None else render_topics(topics_of(word), width()))
