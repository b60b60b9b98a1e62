"""A judge that knows nothing of gradprobe's comparison: a kernel's results against autograd of a dense float64 forward.

    python benchmarks/judge.py OUT TARGET [WORDS OF gradprobe check...]
    python benchmarks/judge.py OUT --each FILE TARGET

Writes a JSON object into OUT: by layout and result the largest error of each head, as a share of the largest right
value; null for what is not finite. With `--each` a list of these, one for each list of words in a JSON file; {} for
one that cannot be run. Only the inputs, and the way in which a kernel is called with them, are gradprobe's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Errors = dict[str, dict[str, list[float | None]]]
# Seconds after which a configuration is given up.
LONGEST = 120
DEFAULT = ("contiguous", "distinct", "do=expanded")
NOT_OF_A_CASE = ("runs", "layout", "json", "repeat")
LEAVES = {"dQ": "q", "dK": "k", "dV": "v", "dBias": "bias", "dSink": "sinks"}


def main() -> None:
    out, words = Path(sys.argv[1]), sys.argv[2:]
    if words[0] != "--each":
        out.write_text(json.dumps(errors_of(words)))
        return
    found: list[Errors] = []
    for more in json.loads(Path(words[1]).read_text()):
        found.append(in_a_fork([words[2], *more], out.with_name(f"{out.name}-one")))
        out.write_text(json.dumps(found))


def in_a_fork(words: list[str], out: Path) -> Errors:
    """The errors; {} of what raises, or writes beyond its memory and dies: a kernel need not take what was drawn."""
    from gradprobe.runtime.backend import prepare_backend

    prepare_backend("auto")
    import triton  # noqa: F401  # once, and not in each fork

    from gradprobe.runtime import run  # noqa: F401

    out.write_text("{}")
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            signal.alarm(LONGEST)
            out.write_text(json.dumps(errors_of(words)))
        os._exit(0)
    os.waitpid(child, 0)
    return dict(json.loads(out.read_text()))


def errors_of(words: list[str]) -> Errors:
    """The errors in each layout that the kernel ran in."""
    from gradprobe.inputs.history import CheckRequest
    from gradprobe.model.assignment import parse_run
    from gradprobe.pipeline.resolve import resolve_problem
    from gradprobe.probing.experiment import effective, experiment_of, inputs_of
    from gradprobe.runtime.run import run_target

    options, layouts = options_of(words[1:])
    problem = resolve_problem(CheckRequest(words[0], options.pop("family", None), None, options))
    experiment, found = experiment_of(problem.case, problem.target), {}
    for layout in layouts:
        assigned = parse_run(layout)
        # A kernel with a fault in it may raise anything.
        with contextlib.suppress(Exception):
            trace = run_target(
                problem.target, problem.case, inputs_of(experiment, assigned)
            ).trace
            if trace is not None:
                right = dense(problem.case, effective(experiment.values, assigned))
                found[layout] = {
                    name: by_head(trace.values[name], right[name])
                    for name in right
                    if name in trace.values
                }
    return found


def options_of(words: list[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Options of a case by name, and the layouts to run in."""
    options: dict[str, Any] = {}
    layouts: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            last = name.replace("-", "_")
            options[last] = number(value) if equals else True
        elif last == "runs":
            layouts.append(word)
        else:
            options[last] = number(word)
    return {name: value for name, value in options.items() if name not in NOT_OF_A_CASE}, tuple(
        layouts
    ) or DEFAULT


def number(word: str) -> Any:
    """A word as the number that it is, where it is one."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def dense(case: Any, values: dict[str, Any]) -> dict[str, Any]:
    """O and the gradients of softmax attention, of float64 matrices of all scores at once."""
    import torch

    for name in ("alibi", "seqlens", "cu_seqlens_q", "dropout"):
        if getattr(case, name):
            raise SystemExit(f"judge.py does not know {name}")
    leaves = {
        name: values[name].double().requires_grad_()
        for name in LEAVES.values()
        if name in values
    }
    k, v = (
        leaves[name].repeat_interleave(case.heads // case.kv_heads, 1) for name in ("k", "v")
    )
    scores = case.scale * leaves["q"] @ k.mT
    scores = scores if case.softcap is None else case.softcap * (scores / case.softcap).tanh()
    scores = scores + leaves["bias"] if "bias" in leaves else scores
    scores = scores.masked_fill(~seen(case, values, scores.shape[-2:]), -math.inf)
    if "sinks" in leaves:
        scores = torch.cat(
            [scores, leaves["sinks"][None, :, None, None].expand(*scores.shape[:3], 1)], -1
        )
    p = scores.softmax(-1).nan_to_num(0.0)  # a row that sees no key
    o = p[..., : k.shape[2]] @ v
    o.backward(values["do"].double())
    return {
        "O": o.detach(),
        **{name: leaves[leaf].grad for name, leaf in LEAVES.items() if leaf in leaves},
    }


def seen(case: Any, values: dict[str, Any], shape: Any) -> Any:
    """Which keys each row sees, as far as they are not hidden by a bias."""
    import torch

    i, j = torch.arange(shape[0])[:, None], torch.arange(shape[1])[None, :]
    diagonal = i + (shape[1] - shape[0] if case.align == "bottom-right" else 0)
    left, right = case.window or (-1, -1)
    found = (j <= diagonal) if case.causal else torch.ones(shape, dtype=torch.bool)
    found = found & (j >= diagonal - left) if left >= 0 else found
    found = found & (j <= diagonal + right) if right >= 0 else found
    return found & values["mask"] if "mask" in values else found


def by_head(came: Any, right: Any) -> list[float | None]:
    """The largest error of each head, as a share of the largest right value; None where it is not finite."""
    error = (came.double() - right).abs() / right.abs().max()
    heads = error.flatten() if error.dim() == 1 else error.transpose(0, 1).flatten(1).amax(1)
    return [float(one) if math.isfinite(float(one)) else None for one in heads]


if __name__ == "__main__":
    main()
