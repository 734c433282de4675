"""What reaches what in a recurrent model: `px.reach`, by the flow of an abstract run,
and what it hands back. What is found about any program is in `_program/reach.py`.
"""
