"""Access to Keras internals, and to layers that users create themselves."""
