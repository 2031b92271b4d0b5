"""The data group: samples, labels and how they become batches."""
