.PHONY: test nightly score attacks versions docs bench

# What every push runs.
test:
	python -m pytest -n 2

# All of it, with what says the same of more cases: every mix-up of strides, every planted fault, every example of the
# pages. Each program that a test starts is a new process. Hours.
nightly:
	python -m pytest -n 2 -m ""

# How many planted faults, equivalent edits and uncovered faults are found, placed and explained. Minutes.
score:
	python -m tests.planted.score

# What is sampled on every push, whole: 10,000 fuzzed command lines, configurations and files each, and 2,000 right cases.
attacks:
	GRADPROBE_TESTS=night python -m pytest -n 2 -m "" tests/attacks

# A short suite in each environment of tests/versions.py, and docs/versions.md. Needs uv and Python 3.10 to 3.13.
versions:
	python -m tests.versions

# Today's output in the console blocks of README.md and docs/, today's picture, and the site in site/. Minutes.
docs:
	python -m tests.docs.examples --write
	python docs/picture.py
	mkdocs build --strict

# How long the main job takes, by stage, and how much of the budget a right kernel uses. No gate.
bench:
	python benchmarks/startup.py
	python benchmarks/main_job.py
	python benchmarks/calibration.py lazy flash
