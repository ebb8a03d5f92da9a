"""What the user set: values, their bounds, the file, keys and themes."""
