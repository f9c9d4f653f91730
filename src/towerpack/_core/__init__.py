"""Ground floor: errors, names, randomness, paths, timing. Standard library and NumPy only."""
