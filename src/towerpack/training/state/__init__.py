"""State of a run: counters, times, metrics, checkpoints, settings and the run directory."""
