"""What a jaxpr says of the model that it is traced from: its calls, and what they cost.
There are no hooks here, and nothing runs.
"""
