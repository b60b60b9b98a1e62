"""Patches what some releases of Triton's interpreter get wrong about scalars."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped


@functools.cache
def make_scalars_right() -> None:
    """Patches the interpreter so that a scalar can count a loop, and a comparison of scalars is a mask."""
    language, splat = shipped._patch_lang_tensor, shipped.InterpreterBuilder.create_splat

    def patch_tensor(tensor: Any, scope: Any) -> None:
        # 3.6 asks numpy for the integer of an array with an axis, which numpy 2.4 refuses.
        language(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def splat_bools(self: Any, shape: Any, scalar: Any) -> Any:
        # A comparison keeps its operands' type beside its bools; 3.9 spreads them as that type, and refuses the mask.
        is_compared = scalar.data.dtype == np.bool_ and scalar.dtype != tl.int1
        return splat(self, shape, shipped.TensorHandle(scalar.data, tl.int1) if is_compared else scalar)

    shipped._patch_lang_tensor = patch_tensor
    shipped.InterpreterBuilder.create_splat = splat_bools
