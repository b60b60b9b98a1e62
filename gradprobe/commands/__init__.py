"""What each command does, without typer: several checks, strides, shrink, mutate, baseline, recorded runs."""
