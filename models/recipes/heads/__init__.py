"""Heads: drafts of one layer that read the target's hidden states, and how they are trained.

Two shapes with one trainer: an MTP block in the target's own file (llama.cpp's `mimo2`), and an EAGLE-3 head
in a file of its own, for a target that stays as it is.
"""
