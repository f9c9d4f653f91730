"""Training loop: epochs, hooks of callbacks, and execution of many steps in one call."""
