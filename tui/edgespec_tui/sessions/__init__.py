"""Conversations, and the database that keeps them."""
