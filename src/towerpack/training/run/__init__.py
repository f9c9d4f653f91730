"""Run of a training: opening, assembly, view for callbacks, end."""
