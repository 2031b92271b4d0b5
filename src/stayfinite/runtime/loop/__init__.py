"""A loop that is the user's own: `for batch in guard(loader)`, and the loop of a script."""
