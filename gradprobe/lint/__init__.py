"""Findings without numbers: which pointers of a kernel advance by a stride that is not their tensor's."""
