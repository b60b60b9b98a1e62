"""The page: a report as one HTML file that needs nothing else."""
