"""Definitions of training steps: the computed costs and the variables that minimize them."""
