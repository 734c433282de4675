def pairs(first, second, third):
    """Rows of one value of each. All values of one meet all of another, but not in each
    way with those of the third, which has no more than the others. That is enough where
    nothing depends on all three at once.
    """
    first, second, third = list(first), list(second), list(third)
    assert len(third) <= min(len(first), len(second))
    return [
        (x, y, third[(i + j) % len(third)])
        for i, x in enumerate(first)
        for j, y in enumerate(second)
    ]
