"""Looks inside a Triton kernel: values that it keeps on chip are stored, without a change to its file."""

from .session import Session, TapReading, tapped
from .tap import Tap, parse_tap

__all__ = ["TapReading", "Session", "Tap", "parse_tap", "tapped"]
