"""Writing and reading checkpoints: the save gate, resumes, the last healthy state."""
