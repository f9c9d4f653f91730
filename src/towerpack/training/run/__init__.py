"""Run of a training: opening, assembly, the callbacks' view of the run, and its end."""
