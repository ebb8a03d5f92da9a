"""The chat without a screen: for pipes, dumb terminals and screen readers."""
