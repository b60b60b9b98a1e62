"""How much a finding counts: an error makes a mismatch, a warning is shown and changes no verdict."""

from __future__ import annotations

ERROR, WARNING = "error", "warning"
