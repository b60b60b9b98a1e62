"""How many threads libraries take."""

import os


def one_for_numpy() -> None:
    """Has numpy compute its products in one thread, unless the environment says otherwise. Call before it is imported.

    Those of Triton's interpreter are small, and between two of them OpenBLAS's other threads spin on the other cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
