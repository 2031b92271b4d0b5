"""Predicts failures: captures healthy steps operator by operator and computes what each could give."""
