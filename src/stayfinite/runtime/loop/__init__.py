"""Drives a user's own loop: `for batch in guard(loader)`, and the loop of a script."""
