"""Small broken trainings with known truth, their fixed twins, and healthy but alarming controls."""
