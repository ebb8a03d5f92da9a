"""Trains drafts on their target's own output, for `edgespec distill` and for the embedded models.

Only `edgespec/commands/distill.py` imports this package, and only when it is asked to.
"""
