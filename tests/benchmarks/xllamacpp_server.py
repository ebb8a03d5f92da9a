"""The server inside xllamacpp, a wheel of a newer llama.cpp, started with llama-server's flags.

    PYTHON_WITH_XLLAMACPP tests/benchmarks/xllamacpp_server.py --model FILE --port N ...

It knows the flags that `peer_command.py` writes, and `--probabilistic`, for
rejection sampling of drafts (llama.cpp's `--spec-draft-sampling probabilistic`).
"""

import argparse
import sys
import threading

FLAGS = (
    *("host", "port", "parallel", "model", "ctx-size", "threads", "threads-batch", "cache-type-k"),
    *("cache-type-v", "cache-ram", "model-draft", "spec-type", "spec-draft-n-max", "flash-attn"),
)


def main() -> None:
    import xllamacpp as x

    parser = argparse.ArgumentParser(description="--spec-type draft-simple")
    for name in FLAGS:
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--probabilistic", action="store_true")
    parser.add_argument("--version", action="version", version=f"xllamacpp, llama.cpp {x.BUILD_INFO}")
    given = parser.parse_args()
    params = x.CommonParams()
    params.model.path, params.hostnames, params.port = given.model, [given.host], int(given.port)
    params.n_ctx, params.n_parallel, params.cache_ram_mib = int(given.ctx_size), int(given.parallel), 0
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = int(given.threads)
    kinds = {"on": 1, "off": 0, "auto": -1, "": -1}
    params.flash_attn_type = x.llama_flash_attn_type(kinds[given.flash_attn])
    if given.model_draft:
        params.speculative.draft.mparams.path = given.model_draft
        params.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.probabilistic = given.probabilistic
        if given.spec_draft_n_max:
            params.speculative.draft.n_max = int(given.spec_draft_n_max)
    server = x.Server(params)
    print(server.listening_address, file=sys.stderr, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
