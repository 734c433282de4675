"""What there is to hook, told without running anything: `px.sites` from the structure
of a model, `px.report` from an abstract run of it, and how both are shown.
"""
