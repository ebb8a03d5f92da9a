"""What the app needs of an engine, and the engine over HTTP that provides it."""
