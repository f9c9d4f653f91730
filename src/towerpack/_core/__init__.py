"""For all layers: errors, names, randomness, paths, timing. Standard library and NumPy only."""
