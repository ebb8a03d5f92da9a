"""Drafts made for a target, from what the target itself says. The only room that imports torch."""
