"""Drafts made for a target, from the target's own output. The only room that imports torch."""
