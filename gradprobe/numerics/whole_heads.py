"""Whole heads: every element of those that a mismatch is about, actual beside expected and what was allowed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from msgspec import json
from torch import Tensor

from ..model.failures import UsageFailure
from ..model.heads import ABOUT, Evidence, KeptHeads, WholeHead
from ..model.intermediates import slots
from ..model.layout_run import MATCH
from ..model.writing import replacing
from .closeup import shown_of, whole_head
from .evidence import LayoutRun, Measured, Probed
from .tally import Finding, Judgement

# Of the values that are held at once and written: P, dP, dS and the rest of one head at L = 2048.
MOST_BYTES = 320 << 20
# float64 of expected and budget, float32 of what came (of float64 twice that), and whether it is wrong.
_BYTES = 25


def keep_heads(probed: Probed, file: str) -> Evidence:
    """Writes whole heads of what a probe found into one .npz file without pickles, as --evidence asks.

    A reader sees all of it or what was there before.

    Raises:
        UsageFailure: it cannot be written.
    """
    kept, arrays = whole_heads(probed)
    named: dict[str, Any] = {ABOUT: np.array(json.encode(kept).decode())}
    named |= {name: values.numpy() for name, values in arrays.items()}
    try:
        with replacing(file) as stream:
            np.savez_compressed(stream, **named)
            stream.seek(0)
            digest = hashlib.sha256(stream.read()).hexdigest()
    except OSError as error:
        raise UsageFailure(f"--evidence {file}: cannot be written, {error.strerror}") from error
    return Evidence(file=file, sha256=digest, heads=len(kept.heads), left_out=kept.left_out, limit=MOST_BYTES)


def whole_heads(probed: Probed, most: int = MOST_BYTES) -> tuple[KeptHeads, dict[str, Tensor]]:
    """What is kept of the run that is shown, and the values by the names of their arrays.

    First the head of the first mismatch, every intermediate of it; then all other heads in which anything is wrong. Of
    a match, of each intermediate the head that is nearest to its budget. What exceeds `most` bytes is left out.
    """
    run, found = probed.failing or probed.measured[0]
    heads, arrays, left_out, room = list[WholeHead](), dict[str, Tensor](), 0, most
    for name, batch, head in dict.fromkeys(_wanted(found)):
        rows, cols = _shape(probed, found.comparison.findings[name])
        if rows * cols * _BYTES > room:
            left_out += 1
            continue
        room -= rows * cols * _BYTES
        kept, judged = _kept(probed, run, name, batch, head)
        heads.append(kept)
        values = (_narrow(judged.actual), judged.expected, judged.bound, ~judged.right)
        named = zip(("actual", "expected", "budget", "wrong"), values, strict=True)
        arrays |= {f"{kept.key}.{part}": value.cpu() for part, value in named}
    return KeptHeads(command=probed.reproduce, layout=run.layout, heads=tuple(heads), left_out=left_out), arrays


def _wanted(measured: Measured) -> Iterator[tuple[str, int, int]]:
    """Intermediate, batch and head, what matters most first."""
    findings = measured.comparison.findings
    wrong = [at for finding in findings.values() for at in _wrong_heads(finding)]
    first = measured.first
    if first is not None and first.intermediate in findings:
        wrong.insert(0, (first.batch or 0, first.head or 0, findings[first.intermediate].ratio.shape[1]))
    most = max(finding.ratio.shape[1] for finding in findings.values())
    for batch, head, count in wrong:
        for name, finding in findings.items():
            n_batch, n_heads = finding.ratio.shape
            # Key heads of a group of query heads, and the first of those of a key head.
            query = head * (most // count)
            yield name, min(batch, n_batch - 1), query * n_heads // most
    if not wrong:
        yield from ((name, *divmod(int(of.ratio.argmax()), of.ratio.shape[1])) for name, of in findings.items())


def _wrong_heads(finding: Finding) -> Iterator[tuple[int, int, int]]:
    n_batch, n_heads = finding.ratio.shape
    for batch in range(n_batch):
        for head in range(n_heads):
            if finding.head_status(batch, head) != MATCH:
                yield batch, head, n_heads


def _shape(probed: Probed, finding: Finding) -> tuple[int, int]:
    rows, cols = (probed.case.size(letter) if letter else 1 for letter in slots(finding.axes)[2:])
    return len(finding.shown) or rows, cols


def _kept(probed: Probed, run: LayoutRun, name: str, batch: int, head: int) -> tuple[WholeHead, Judgement]:
    measured, kernel = shown_of(run, name)
    judged, _, rows = whole_head(probed.case, measured, name, batch, head)
    axes = measured.comparison.findings[name].axes
    kept = WholeHead(
        intermediate=name, kernel=kernel, batch=batch if axes[0] == "b" else None, head=head,
        shape=(judged.right.shape[0], judged.right.shape[1]), rows=rows.at if rows else (),
    )  # fmt: skip
    return kept, judged


def _narrow(values: Tensor) -> Tensor:
    """The values in float32, where that holds them as they came."""
    narrow = values.float()
    return narrow if torch.equal(narrow.double().nan_to_num(), values.nan_to_num()) else values
