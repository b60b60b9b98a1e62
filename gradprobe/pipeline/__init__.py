"""The stages in order: the request, the case that fits, the runs, the diagnosis, the evidence."""
