"""A target that works in several ranks at once: the processes, what they are given and answer, and where they wait."""
