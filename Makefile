.PHONY: test nightly score attacks versions bench

# What every push runs.
test:
	python -m pytest -n 2

# The same of more cases: every mix-up of strides, every planted fault. Hours.
nightly:
	python -m pytest -n 2 -m nightly

# Every planted fault, equivalent edit and uncovered fault: how many are found, placed and explained. Takes minutes.
score:
	python -m tests.faults.score

# What is sampled on every push, whole: 10,000 fuzzed command lines, configurations and files each, and 2,000 right cases.
attacks:
	GRADPROBE_TESTS=night python -m pytest -n 2 -m "" tests/attacks

# A short suite in each environment of tests/versions.py, and docs/versions.md. Needs uv and Python 3.10 to 3.13.
versions:
	python -m tests.versions

# How long the main job takes, by stage, and how much of the budget a right kernel uses. No gate.
bench:
	python benchmarks/startup.py
	python benchmarks/main_job.py
	python benchmarks/calibration.py lazy flash
