"""The ranks of a training, and how they agree about a step."""
