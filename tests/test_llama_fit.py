"""What llama.cpp's own `common_fit_params` chooses for the same file and memory, beside what is chosen here.

    EDGESPEC_TEST_PEER=BUILD/bin/llama-server python -m pytest tests/test_llama_fit.py -m slow -s

The build has its target llama-fit-params, too. A machine of --rpc stands in for a card.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
from test_rpc import lent

from edgespec.memory.at_load import pair_fit, ram
from edgespec.pairs.settings import PairSettings
from edgespec.system.machines import remote_devices
from edgespec_models.fit.allotment import ALL, CARD_MARGIN
from edgespec_models.fit.need import Device

TOOL = Path(os.environ.get("EDGESPEC_TEST_PEER", "absent")).with_name("llama-fit-params")
MIB, N_CTX = 2**20, 4096
SHARES = (1.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # of what the whole model takes, that is free
FILES: dict[str, Callable[[Path], Path]] = {
    "mixture": lambda path: tiny_gguf.write_experts(
        path, n_vocab=4096, d=256, layers=16, experts=32, used=4, ffn=256, context_length=N_CTX, dtype="F16"
    ),
    "dense": lambda path: tiny_gguf.write_llama(
        path, n_vocab=4096, d=512, layers=16, n_head=8, ffn=2048, context_length=N_CTX, dtype="F16"
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(
    not TOOL.exists(), reason="EDGESPEC_TEST_PEER names no llama-server beside llama-fit-params"
)
@pytest.mark.parametrize("kind", FILES)
def test_ours_never_needs_more_and_rarely_places_less(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By llama.cpp's own count of both. It puts parts of the last layer's experts on the card, too."""
    path, lines, worse = FILES[kind](tmp_path / "model.gguf"), ["free, MiB: llama.cpp, ours"], 0
    with lent() as machine:
        (device,) = remote_devices((machine.address,))
        settings = PairSettings(n_ctx=N_CTX, rpc=(machine.address,))

        def said(*asked: str) -> str:
            command = [str(TOOL), "-m", str(path), "--rpc", machine.address, "-c", str(N_CTX), "-np", "1"]
            return subprocess.run(
                [*command, *asked], capture_output=True, text=True, check=True, timeout=60
            ).stdout.strip()

        def takes(*asked: str) -> int:
            rows = [line.split() for line in said("-fitp", "on", *asked).splitlines()]
            return sum(sum(map(int, row[1:])) for row in rows if row[0] != "Host")

        whole = takes("-ngl", "99")
        for share in SHARES:
            free = int(whole * share)
            theirs = takes(*shlex.split(said("-fitt", str(device.free // MIB - free)))[2:])
            card = Device(device.name, free * MIB + CARD_MARGIN, device.total)
            found = pair_fit(path, None, settings, [ram(), card])
            layers = 99 if found.choice.n_gpu_layers == ALL else found.choice.n_gpu_layers
            rules = replace(settings.placement, cpu_moe=found.choice.cpu_moe).rules
            placed = [f"{pattern}={where}" for pattern, where in rules]
            ours = takes("-ngl", str(layers), *(["-ot", ",".join(placed)] if placed else []))
            lines.append(f"{free:5}: {theirs:5} {ours:5}  {', '.join(found.gave_up)}")
            assert found.fits and ours <= free, lines[-1]
            worse += ours < theirs - max(0.05 * whole, 2)
    with capsys.disabled():
        print("", kind, *lines, sep="\n")
    assert worse <= len(SHARES) // 3
