"""State of a run: counters, times, numbers, checkpoints, settings, and the run directory."""
