"""Healthy but alarming trainings, one a file: `build`, and nothing to find."""
