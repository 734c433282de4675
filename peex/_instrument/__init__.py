"""Putting sites into a model, so that its own code runs them: around the calls of its
modules, at probes, and at named values inside of a forward pass. What is done at a site
is the engine's; what is chosen, the wrapper's.
"""
