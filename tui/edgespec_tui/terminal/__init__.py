"""The terminal under the app: what it sends, in whatever bytes, and the app's guard against it."""
