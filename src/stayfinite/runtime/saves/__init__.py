"""What is written to disk and read back: the save gate, resumes, the last healthy state."""
