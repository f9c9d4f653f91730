"""Replay of a run: the data of its steps, and the steps that stand out."""
