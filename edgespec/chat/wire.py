"""What a process and its renderer of templates say to each other."""

from __future__ import annotations

import struct

QUESTION = struct.Struct("<QQQ")  # bytes of the pickle that follows; bytes of memory and of text it may take
ANSWER = struct.Struct("<Qc")  # bytes of the text that follows; what it is
TEXT, REFUSED, TOO_MUCH = b"=", b"!", b"?"  # what was rendered; the template's complaint; what was too much
