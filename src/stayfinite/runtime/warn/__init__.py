"""What is worth a warning while nothing is wrong yet."""
