"""Attention backwards as their formulas, in plain torch and float64: the specification that kernels are held to."""

from .attention import Attention, Tile, evaluate, live_length, manual_attention_backward, tiles

__all__ = ["Attention", "Tile", "evaluate", "live_length", "manual_attention_backward", "tiles"]
