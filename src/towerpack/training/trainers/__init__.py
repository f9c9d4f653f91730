"""Trainers, which combine a step, a distribution and the training loop."""
