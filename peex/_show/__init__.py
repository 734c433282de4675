"""What all that is shown has in common: how wide it is, where lines break, and equal
siblings as one. Knows nothing of models.
"""
