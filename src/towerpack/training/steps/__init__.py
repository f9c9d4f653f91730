"""Definitions of a training step: what is computed and minimized."""
