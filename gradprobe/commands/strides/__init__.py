"""A target under one layout after another: what is tried, what each run showed."""
