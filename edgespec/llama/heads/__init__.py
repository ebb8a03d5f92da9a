"""Heads: small networks that guess from what the target made of its tokens."""
