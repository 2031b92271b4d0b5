"""What is done about an incident."""
