"""An endpoint seen from Python: values, streams, attaching to a running engine."""
