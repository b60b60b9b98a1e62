"""CUDA C++: what is known of it outside this folder, beside `gradprobe.cuda`."""

from .watch import BLOCK, LANGUAGE, THREAD, WARP, Recorded, Recording, Watch, recorded, watched

__all__ = [
    "BLOCK", "LANGUAGE", "THREAD", "WARP", "Recorded", "Recording", "Watch", "recorded", "watched",
]  # fmt: skip
