"""Tells a sound from a picture, by its first bytes."""


def is_sound(file: bytes) -> bool:
    """Returns whether a file is a sound that can be read: WAV or MP3."""
    wav = file[:4] == b"RIFF" and file[8:12] == b"WAVE"
    return wav or file.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"))
