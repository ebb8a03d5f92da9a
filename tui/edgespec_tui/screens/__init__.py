"""The screens: chat, race, models, sessions, help."""
