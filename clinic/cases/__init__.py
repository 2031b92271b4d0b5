"""One broken training a file: `build`, `build_fixed` and `TRUTH`."""
