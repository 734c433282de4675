"""What users wrap a model with, and how a hooked call goes: a plan is made once, when
the wrapper is built; a call makes the sites of it, runs the instrumented model, checks
that what was asked for ran, and returns the log.
"""
