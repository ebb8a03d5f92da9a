"""The screens: chat, race, bench, models, sessions, help."""
