"""Make a head from nothing, stage by stage; a stage whose file exists is not run again.

For the embedded pair (`tiny`):
1. `teacher.gguf`: the target re-expressed as `mimo2`, with an untrained block;
2. `watched-0`, `heard-N`: it continues held-out and training prompts, with states and rows recorded;
3. `mtp.pt`: the block is trained;
4. `target-mtp.gguf` is exported and measured: `figures.json`, `figures.md`.

For SmolLM2 (`smollm2`), whose file stays as it is:
1. `watched-0`: it answers questions that nothing is trained on;
2. `heard-N-M`: it answers its own questions and others, in torch, in process N (`gathering.py`);
3. `kept.npy`: its most frequent tokens, which the head may guess;
4. `eagle3.pt`: the head is trained; 5. `smollm2-eagle3.gguf` is exported and measured.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec_models.distill import gather, head_file, heard, start
from edgespec_models.distill.head import HeadNetwork
from edgespec_models.distill.hidden import Hidden
from edgespec_models.distill.listen import listen
from edgespec_models.distill.model_file import About
from edgespec_models.distill.plan import Plan
from edgespec_models.distill.progress import Log
from edgespec_models.distill.saying import Saying
from edgespec_models.distill.start import read_llama
from edgespec_models.distill.target_file import TargetFile, open_target
from edgespec_models.distill.train import train
from edgespec_models.distill.words_kept import most_said, numbers_of
from recipes import restore, stages
from recipes.heads import accepted, asking, embedded, spec_bench
from recipes.heads.accepted import TokenisedPrompt
from recipes.heads.gathering import WIDTH_ON_GPU, gather_all
from recipes.heads.guesser import HeadGuesser
from recipes.heads.sing import Choir, sing
from recipes.prompts import read as read_prompts
from recipes.stages import WorkFolders

TEMPERATURES = (0.0, 0.7, 1.0)  # at which figures are measured
TINY_SAID = 1_500_000
TINY_PLAN = Plan(
    tokens=6_000_000,
    anneal=4_800_000,
    warmup=30_000,
    batch=3072,
    micro=3072,
    matrix_rate=1e-2,
    vector_rate=5e-3,
)
SMOL_SAID = 6_000_000
SMOL_PLAN = Plan(
    tokens=24_000_000,
    anneal=19_000_000,
    warmup=50_000,
    batch=4096,
    micro=2048,
    matrix_rate=1e-2,
    vector_rate=5e-3,
)  # from the curve of a short run (README); hours on two cores, made for a GPU
SMOL_TAPS = (2, 15, 29)
SMOL_KEPT = 12_288


def stopped(name: str) -> KeyboardInterrupt:
    return KeyboardInterrupt(f"{name} was stopped; the same command goes on with it")


def speaking(place: WorkFolders, speaker: Hidden, target: TargetFile, ends: set[int]) -> gather.Speak:
    """Return how the target writes: through llama.cpp, or in torch if that has a GPU."""
    if place.device.type == "cpu":
        return lambda sayings, seed: listen(speaker, sayings, ends, gather.WIDTH, seed)
    choir = Choir(read_llama(target).to(place.device), speaker.taps or (), WIDTH_ON_GPU)
    return lambda sayings, seed: sing(choir, sayings, ends, seed)


def trained(
    place: WorkFolders,
    head: HeadNetwork,
    shards: list[Path],
    watched: Path,
    numbers: NDArray[np.int64] | None,
    name: str,
    plan: Plan,
    log: Log,
) -> HeadNetwork:
    """Train a head to the end of its plan."""
    torch.manual_seed(1)
    head = head.to(place.device)
    if not train(head, shards, list(heard.read(watched)), numbers, place.work / f"{name}.pt", plan, log):
        raise stopped(name)
    return head.cpu()


def measured(
    place: WorkFolders,
    target: Hidden,
    head: HeadGuesser,
    prompts: list[TokenisedPrompt],
    ends: set[int],
    log: Log,
) -> None:
    """Measure acceptance at every temperature; write `figures.json` and `figures.md`."""
    found = {}
    for temperature in TEMPERATURES:
        found[str(temperature)] = accepted.rates(target, head, prompts, temperature, 128, ends)
        log(f"measured at temperature {temperature}: {found[str(temperature)]['all']}")
    same = sum(
        accepted.speculate(target, head, p.ids, 96, 0.0, 0, ends)[0][:96]
        == accepted.plain(target, p.ids, 96, ends)
        for p in prompts[:24]
    )
    found["same"] = {"texts": min(24, len(prompts)), "equal": same}
    (place.work / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (place.work / "figures.md").write_text(table(found), encoding="utf-8")
    log(f"done: {place.work}, figures in figures.md; texts as without a head: {found['same']}")


def table(found: dict[str, dict[str, object]]) -> str:
    """Write rates as a Markdown table."""
    lines = [
        "| temperature | kind | accepted / drafted | by place | 1 - TV by place | tokens a round | drafted |"
    ]
    lines.append("| --- " * 7 + "|")
    for temperature in map(str, TEMPERATURES):
        for kind, r in sorted(found[temperature].items()):
            assert isinstance(r, dict)
            places, shared = (
                ", ".join(f"{x:.2f}" for x in r[k]) for k in ("by_position", "expected_by_position")
            )
            row = (
                temperature,
                kind,
                f"{r['acceptance_rate']:.2f}",
                places,
                shared,
                r["mean_accepted_length"],
                r["drafted"],
            )
            lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines) + "\n"


def make_tiny(place: WorkFolders, shipped: Path, log: Log) -> None:
    """Make the embedded target with an MTP block."""
    place.work.mkdir(parents=True, exist_ok=True)
    file = shipped / "target.gguf"
    target, tokenizer = open_target(file), restore.read_tokenizer(file)
    ends, prompts_file = stages.ends_of(tokenizer), shipped / "held_out_prompts.jsonl"
    head, teacher = start.begin(target, "mtp"), place.work / "teacher.gguf"
    about = About(
        "EdgeSpec tiny target with MTP",
        "EdgeSpec's embedded target, with a block that guesses",
        "9.3M",
        "1.0",
    )
    if not teacher.exists():
        head_file.write_mtp(head, target, teacher, about)
    with Hidden(teacher, context=embedded.CONTEXT + 32, sequences=gather.WIDTH) as speaker:
        speak = speaking(place, speaker, target, ends)
        watch = gather.gather(
            speak, place.work, "watched", lambda n: embedded.watched(tokenizer, prompts_file), 1, log
        )
        shards = gather.gather(
            speak, place.work, "heard", lambda n: embedded.training(tokenizer, n), TINY_SAID, log
        )
    head = trained(place, head, shards, watch[0], None, "mtp", TINY_PLAN, log)
    made = place.out / "target-mtp.gguf"
    place.out.mkdir(parents=True, exist_ok=True)
    head_file.write_mtp(head, target, made, about)
    with Hidden(made, context=1024, mtp=True) as reader:
        prompts = [
            TokenisedPrompt(p["kind"], reader.tokenise(p["prompt"])) for p in read_prompts(prompts_file)
        ]
        measured(place, reader, HeadGuesser(reader), prompts, ends, log)


def make_smollm2(place: WorkFolders, file: Path, bench: Path, log: Log) -> None:
    """Make an EAGLE-3 head for SmolLM2-135M-Instruct."""
    place.work.mkdir(parents=True, exist_ok=True)
    target = open_target(file)
    template, vocab = target.text("tokenizer.chat_template"), target.whole("vocab_size")
    ends, apart = asking.ends(target), spec_bench.watched(spec_bench.read(bench))
    with Hidden(
        file, SMOL_TAPS, context=asking.CONTEXT, sequences=gather.WIDTH, threads=place.threads
    ) as speaker:

        def unseen(number: int) -> list[Saying]:
            return asking.of_all(speaker, template, apart)

        def speak(sayings: list[Saying], seed: int) -> Iterator[heard.Heard]:
            return listen(speaker, sayings, ends, gather.WIDTH, seed)

        watch = gather.gather(speak, place.work, "watched", unseen, 1, log)
    shards = gather_all(place, file, bench, SMOL_TAPS, SMOL_SAID)
    if not (place.work / "kept.npy").exists():
        np.save(place.work / "kept.npy", most_said(shards, SMOL_KEPT, vocab))
    kept = np.load(place.work / "kept.npy")
    head = start.begin(target, "eagle3", kept)
    head = trained(place, head, shards, watch[0], numbers_of(kept, vocab), "eagle3", SMOL_PLAN, log)
    made = place.out / "smollm2-eagle3.gguf"
    place.out.mkdir(parents=True, exist_ok=True)
    about = About(
        "SmolLM2-135M-Instruct EAGLE-3", "An EAGLE-3 head for SmolLM2-135M-Instruct Q4_1", "10M", "1.0"
    )
    head_file.write_eagle3(head, target, made, about, SMOL_TAPS, kept)
    with Hidden(file, SMOL_TAPS, context=2048) as reader:
        prompts = [
            TokenisedPrompt(q.kind, asking.rendered(reader, q.turns, template))
            for q in spec_bench.reported(spec_bench.read(bench))
        ]
        measured(place, reader, HeadGuesser(reader, made), prompts, ends, log)
