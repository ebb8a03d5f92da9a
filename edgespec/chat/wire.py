"""The messages between a process and its renderer of templates."""

from __future__ import annotations

import struct

QUESTION = struct.Struct("<QQQ")  # bytes of the pickle that follows; bytes of memory and of text it may take
ANSWER = struct.Struct("<Qc")  # bytes of the text that follows; what it is
TEXT, REFUSED, TOO_MUCH = b"=", b"!", b"?"  # rendered text; the template's complaint; what was too much
