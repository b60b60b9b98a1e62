"""Kept heads: writes whole heads of what a probe found into one file, as --evidence asks."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from ..model.failures import UsageFailure
from ..model.heads import ABOUT, Evidence
from ..model.writing import replacing
from ..numerics.evidence import Probed
from ..numerics.whole_heads import MOST_BYTES, whole_heads


def keep_heads(probed: Probed, file: str) -> Evidence:
    """Writes an .npz file without pickles; a reader sees all of it or what was there before.

    Raises:
        UsageFailure: it cannot be written.
    """
    kept, arrays = whole_heads(probed)
    named: dict[str, Any] = {ABOUT: np.array(msgspec.json.encode(kept).decode())}
    named |= {name: values.numpy() for name, values in arrays.items()}
    try:
        with replacing(file) as stream:
            np.savez_compressed(stream, **named)
            stream.seek(0)
            digest = hashlib.sha256(stream.read()).hexdigest()
    except OSError as error:
        raise UsageFailure(f"--evidence {file}: cannot be written, {error.strerror}") from error
    return Evidence(file=file, sha256=digest, heads=len(kept.heads), left_out=kept.left_out, limit=MOST_BYTES)
