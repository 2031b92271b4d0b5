"""Checks an unmodified script in its own process."""
