"""State that a model keeps between calls, named by the paths of the model. Nothing here
knows of hooks; wrappers are seen through, so that paths are the same hooked or not.
"""
