"""Foundations of all layers, which need only the standard library and NumPy."""
