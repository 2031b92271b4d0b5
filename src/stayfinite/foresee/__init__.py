"""What can go wrong before it does: the operators of healthy steps, and what they can give."""
