"""What the web process and the engine say to each other: messages, and the marks of media in a text."""
