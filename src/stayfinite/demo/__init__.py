"""Small broken trainings that `stayfinite demo` runs."""
