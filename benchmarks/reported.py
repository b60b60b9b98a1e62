"""Whether small inputs that once came out wrong are told rightly: a table of commands and of what is right of each.

    python benchmarks/reported.py FOLDER [--only WORD] [--workers 2]

FOLDER holds the files that the table names; the repository has inputs of the same kinds, and their tests, in
tests/reported. A case is right by its exit code, by what it says and by what it does not say. What is not as it should
be is printed; the exit code is 1 where anything is.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = "--batch 1 --heads 2 --seqlen 20 --head-dim 16"
LONG = "--batch 1 --heads 2 --seqlen 150 --head-dim 32 --causal"
NEVER = ("by a fault of gradprobe", "gradprobe itself failed", "Traceback", "AssertionError")


@dataclass(frozen=True)
class Case:
    """A command, and what is right of it."""

    words: str
    """What follows `gradprobe check`; of a program, what follows `python`."""
    code: int
    says: tuple[str, ...] = ()
    """Patterns that the output has, all of them."""
    never: tuple[str, ...] = ()
    """Patterns that it has not."""
    is_program: bool = False

    @property
    def file(self) -> str:
        return self.words.split()[0].partition(":")[0]

    def faults(self, folder: Path) -> list[str]:
        """What is not as it should be, a sentence each."""
        command = (
            self.words.split()
            if self.is_program
            else ["-m", "gradprobe", "check", *self.words.split()]
        )
        ran = subprocess.run(
            [sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        text = " ".join(f"{ran.stdout} {ran.stderr}".split())
        found = (
            []
            if ran.returncode == self.code
            else [f"exit code {ran.returncode}, not {self.code}"]
        )
        found += [
            f"it says nothing like {pattern!r}"
            for pattern in self.says
            if not re.search(pattern, text)
        ]
        return found + [
            f"it says {pattern!r}"
            for pattern in (*self.never, *NEVER)
            if re.search(pattern, text)
        ]


def right(file: str, functions: str, options: str = SMALL) -> Iterator[Case]:
    """Functions that match, without a word of a cause."""
    for function in functions.split():
        yield Case(f"{file}:{function} {options}", 0, ("MATCH",), ("MISMATCH", "CAUSE"))


def in_16_bits() -> Iterator[Case]:
    """Attention as torch and transformers compute it in 16 bits, of several draws."""
    for dtype in ("bfloat16", "float16"):
        for seed in range(3):
            yield from right(
                "right16.py",
                "hf eager einsum unnormalised",
                f"{LONG} --dtype {dtype} --seed {seed}",
            )


PLAIN = (
    "online_exp2_reversed lse_base2 dead_lse_plus_inf split_k_shuffled no_delta jacobian kahan in_float64 sorted_keys "
    "no_max shapes_blhd_views blhd delta_4axes softcap_tanh dropout0 via_fn decorated vmapped chunk_checkpoint "
    "dq_fp32_for_16 results_from_pool fast_exp scripted module partial_of delta_scaled dS_scaled lse_less_max"
)
CASES = [
    Case(
        "row_factor.py:gate --bias --bias-axes hn", 1, ("FIRST MISMATCH P ", r"row_factor\.py:\d+ in dkv_kernel"),
        ("value/d[VS]",),
    ),
    Case("torch_delta_axis.py:attn_bwd --causal", 1, ("dP or delta|FIRST MISMATCH delta",), ("dP is the first wrong",)),
    Case(
        "shared_index.py:backward --batch 1 --heads 2 --seqlen 40 --head-dim 16", 1,
        ("FIRST MISMATCH dV", r"shared_index\.cu:\d+ in dv_kernel"), ("P is the first wrong",),
    ),
    Case(f"p_by_key.py:f {SMALL}", 1, (r"0\.1 ?%",), ("LSE that",)),
    *right("right.py", PLAIN),
    *right("right.py", "tf32", f"{SMALL} --dots tf32"),
    *right("right.py", "bf16x3", f"{SMALL} --dots bf16x3"),
    *right("right.py", "rounded16 stochastic folded_q16", f"{SMALL} --dtype bfloat16"),
    *right("right.py", "softcap_tanh", f"{SMALL} --softcap 5"),
    *right("right.py", "sink", f"{SMALL} --sinks"),
    *right("right.py", "window_gather", f"{SMALL} --window 4,2"),
    *right("right.py", "alibi_as_feature", f"{SMALL} --alibi"),
    *right("right.py", "gqa_reversed", "--batch 1 --heads 4 --kv-heads 2 --seqlen 20 --head-dim 16"),
    *in_16_bits(),
    *right("right16.py", "sdpa_gqa", "--batch 1 --heads 4 --kv-heads 2 --seqlen 20 --head-dim 16 --dtype bfloat16"),
    *right("right16.py", "mask_add", f"{SMALL} --mask random --dtype bfloat16"),
    *right("right16.py", "bias_t5", f"{SMALL} --bias --dtype bfloat16"),
    *right("right16.py", "varlen", "--cu-seqlens 0,7,20 --heads 2 --head-dim 16 --dtype bfloat16"),
    Case("two_templates.py", 0, ("ok a<32> ok b<32> ok a<32>",), is_program=True),
    Case("struct_param.cu", 1, ("FIRST MISMATCH delta", r"struct_param\.cu:\d+ in delta_kernel")),
    Case("gqa_bf16.py:gqa_attention --dtype bfloat16", 1, ("right as it was asked for, wrong with grouped heads",)),
    Case("batch_or_head_wraps.py:f", 1, ("a third batch",)),
    Case("batch_or_head_wraps.py:g", 1, ("a tenth head",)),
    Case(f"padding_forgotten.py:back --mask padding {SMALL}", 1, ("CAUSE .*mask",)),
    Case(f"plain_global.py:back {SMALL}", 3, ("does not compile", r"plain_global\.py:\d+", "HALF")),
    *right("loop_bound_loaded.py", "back"),
    *right("language_alias.py", "back"),
    Case("int_window.py:local_attention_bwd --window 16,0", 1, ("delta",)),
    *right("forks.py", "f g"),
]  # fmt: skip


def main() -> int:
    """Runs every case whose file is there, and prints how each came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    cases = [
        case
        for case in CASES
        if (given.folder / case.file).exists() and given.only in case.words
    ]
    with ThreadPoolExecutor(given.workers) as pool:
        found = list(pool.map(lambda case: case.faults(given.folder), cases))
    for case, faults in zip(cases, found, strict=True):
        print(
            "right" if not faults else "WRONG",
            case.words,
            *(f"\n      {fault}" for fault in faults),
        )
    print(f"{sum(not faults for faults in found)} of {len(cases)} cases are right")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
