"""Sites inside of any JAX program: how they hand values out and are given arrays, and
how these are brought out of control flow, one level at a time.

Knows of descriptions of sites and of jaxprs alone: nothing of models, of hooks by name,
or of wrappers.
"""
