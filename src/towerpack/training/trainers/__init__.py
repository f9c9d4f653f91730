"""Trainers, which put a step, a distribution and a loop together."""
