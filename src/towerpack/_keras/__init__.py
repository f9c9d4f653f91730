"""Keras as a tower needs it: what Keras does not export, and layers that users made themselves."""
