"""An unmodified script, checked in a process of its own."""
