"""The primitives out of which sites can be brought, one file for each. A file knows
everything of its primitive and registers its `Rule`; nothing else names a primitive
that has bodies.
"""
