"""What runs inside programs that gradprobe starts; it comes by PYTHONPATH, and is off their path at once."""

from pathlib import Path

STARTUP = Path(__file__).resolve().parent
"""The folder that goes onto PYTHONPATH."""
