"""What can go wrong before it does: batches that real data will bring one day, and how likely they are."""
