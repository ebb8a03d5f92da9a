"""The child process of `edgespec convert`: llama.cpp's quantiser writes a file; it may abort at any time.

Prints a line for each tensor, `N of ALL`, and last, if it failed, llama.cpp's message.
"""

import ctypes
import os
import re
import sys

import llama_cpp

ERROR = 4  # ggml's level
TENSOR = re.compile(r"\[ *(\d+)/ *(\d+)\]")


def main() -> int:
    """Converts. Arguments: the file, where to, llama.cpp's number of the format, threads."""
    source, output, number, threads = sys.argv[1:]
    reasons: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes, data: object) -> None:
        line = text.decode(errors="replace").strip()
        if found := TENSOR.match(line):
            print(f"{found[1]} of {found[2]}", flush=True)
        elif level == ERROR and line:
            reasons.append(line.rpartition("failed to quantize: ")[2])

    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.nthread, wanted.allow_requantize = int(number), int(threads), True
    code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(output), ctypes.byref(wanted))
    if code:
        print(reasons[-1] if reasons else "llama.cpp does not say why", flush=True)
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
