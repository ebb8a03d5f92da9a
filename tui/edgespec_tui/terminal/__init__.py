"""The terminal under the app: what it sends, in whatever bytes."""
