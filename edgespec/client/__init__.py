"""An endpoint seen from Python: values, connections, streams."""
