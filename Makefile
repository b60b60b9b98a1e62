# Every planted fault, equivalent edit and uncovered fault: how many are found, placed and explained. Takes minutes.
.PHONY: score
score:
	python -m tests.faults.score

# What is sampled on every push, whole: 10,000 fuzzed command lines, configurations and files each, and 2,000 right cases.
.PHONY: attacks
attacks:
	GRADPROBE_TESTS=night python -m pytest -n 2 tests/attacks

# A short suite in each environment of tests/versions.py, and docs/versions.md. Needs uv and Python 3.10 to 3.13.
.PHONY: versions
versions:
	python -m tests.versions
