"""A whole script or block of code, run and watched."""
