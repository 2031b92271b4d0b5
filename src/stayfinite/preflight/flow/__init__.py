"""The forward group: activations, losses and gradients of a few real steps."""
