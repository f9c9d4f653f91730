"""Access to internals of Keras, and search for Keras layers that users create."""
