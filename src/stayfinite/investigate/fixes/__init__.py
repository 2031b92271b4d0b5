"""Changes of the user's source and settings: found, run, proved or refuted."""
