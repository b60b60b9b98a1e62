"""What a project says once for all checks: `[tool.gradprobe]` in pyproject.toml, and the environment."""
