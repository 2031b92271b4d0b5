"""Finds where a NaN or Inf was born: the operator trace of a replay, and the slice back from the symptom."""
