"""What the rules are told: read from the live training, its source and its data."""
