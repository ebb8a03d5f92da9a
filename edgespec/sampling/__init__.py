"""Logits become a distribution: temperature, truncation, penalties, masks, and drawing from it."""
