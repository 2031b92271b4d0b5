"""Shows incidents and runs: terminal, files, journal, page, sinks. Imports no torch."""
