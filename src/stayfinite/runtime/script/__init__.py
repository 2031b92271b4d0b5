"""Runs and watches a whole script or block of code."""
