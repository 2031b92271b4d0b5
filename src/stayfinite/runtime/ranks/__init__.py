"""The ranks of one training: who they are, and how they agree about a step."""
