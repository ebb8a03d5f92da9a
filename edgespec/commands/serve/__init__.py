"""edgespec serve: flags, the settings file, and the life of the web process."""
