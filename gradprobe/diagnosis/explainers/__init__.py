"""Explainers of a followed run: functions of one signature, asked in the order of `suspects`."""
