"""Epochs, hooks, and many steps in one call of TensorFlow."""
