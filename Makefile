# Every planted fault, equivalent edit and uncovered fault: how many are found, placed and explained. Takes minutes.
.PHONY: score
score:
	python -m tests.faults.score
