"""Comparing two models that should compute the same: what `px.debug.compare` does.
Public names are re-exported in `peex/debug`.
"""
