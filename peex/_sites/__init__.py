"""The structure of a model, and choosing places in it. Nothing here runs a model, or
puts anything into it.
"""
