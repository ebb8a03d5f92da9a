"""`edgespec run` as a person or a script uses it.

Tests of processes run in processes of their own: streams, encodings, signals, files on which llama.cpp
may abort.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_gguf
from commands import EDGESPEC, edgespec, in_process, posix, refused
from in_terminal import Terminal

from edgespec.commands import cli, flags
from edgespec.commands.loading import rope
from edgespec.commands.status_line import QUIET_S, status_line
from edgespec.errors import GrammarError
from edgespec.pairs.shown_name import shown_name
from edgespec_models import tiny

NO_END = [f"--logit-bias={token}=-inf" for token in (509, 510, 511)]
QUICK = ["--threads", "1", "-n", "24", "--seed", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return tiny_gguf.write_llama(folder / "target.gguf", context_length=4096, dtype="Q8_0")


@pytest.fixture(scope="module")
def draft(folder: Path, target: Path) -> Path:
    return tiny_gguf.write_llama(folder / "draft.gguf", context_length=4096, dtype="Q8_0", noise=0.05)


def run(target: Path, *arguments: str | Path, stdin: bytes = b"") -> tuple[str, str]:
    """Runs `edgespec run` where it should work; returns (stdout, stderr)."""
    code, out, err = in_process("run", "--target", target, *QUICK, *arguments, stdin=stdin)
    assert code == 0, err
    return out, err


# ---- run: what goes in ------------------------------------------------------------------------------------


def test_the_prompt_may_come_from_the_command_line_or_standard_input(target: Path, draft: Path) -> None:
    """As a program, with the files named by the environment, it says the same."""
    from_line, _ = run(target, "--draft", draft, "tell me about words")
    assert len(from_line) > 20
    assert run(target, "--draft", draft, stdin=b"tell me about words\n")[0] == from_line
    assert run(target, "--draft", draft, "-", stdin=b"tell me about words")[0] == from_line
    assert run(target, "--draft", draft, "tell me about nothing")[0] != from_line
    files = {"EDGESPEC_TARGET": str(target), "EDGESPEC_DRAFT": str(draft)}
    done = edgespec("run", *QUICK, "--json", "--draft-length", "2", stdin=b"tell me about words\n", **files)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == from_line.rstrip("\n")
    assert json.loads(done.stdout)["drafted"] > 0


def test_raw_continues_the_text_and_without_it_the_template_is_used(target: Path) -> None:
    raw = json.loads(run(target, "--raw", "--json", "the people")[0])
    chat = json.loads(run(target, "--json", "the people")[0])
    turn = json.loads(run(target, "--raw", "--json", "<|im_start|>")[0])
    assert raw["prompt_tokens"] < 6
    assert chat["prompt_tokens"] > raw["prompt_tokens"] + 8  # the template's own
    assert turn["prompt_tokens"] > 1  # a control token in a user's text is text
    assert raw["text"] != chat["text"]


def test_the_system_prompt_is_part_of_the_conversation(target: Path) -> None:
    without = json.loads(run(target, "--json", "hello")[0])
    with_it = json.loads(run(target, "--json", "--system", "be brief", "hello")[0])
    assert with_it["prompt_tokens"] > without["prompt_tokens"]


def test_bytes_that_are_no_utf8_are_answered(target: Path) -> None:
    """The shell's bytes became lone surrogates, and the template's text could not be encoded."""
    for arguments, stdin in ((["caf\udce9 \udcff"], b""), ([], b"caf\xe9 \xff"), (["--raw", "\udcff"], b"")):
        told = run(target, "-q", *arguments, stdin=stdin)[1]
        assert "not UTF-8 text: the model gets" in told
    done = subprocess.run([*EDGESPEC, "run", "--target", target, *QUICK, "-q", b"\xff"], capture_output=True)
    assert done.returncode == 0


# ---- run: what comes out ----------------------------------------------------------------------------------


def test_stdout_has_the_text_and_stderr_the_figures(target: Path, draft: Path) -> None:
    out, err = run(target, "--draft", draft, "--draft-length", "2", "hello")  # drafts on a busy machine too
    text = json.loads(run(target, "--draft", draft, "--json", "hello")[0])["text"]
    assert out in (text, text + "\n")
    assert out.endswith("\n")
    assert err.startswith("\n24 tokens, ")
    for figure in (
        "tok/s",
        "first token after",
        "acceptance rate",
        "mean accepted length",
        "draft",
        "verify",
    ):
        assert figure in err
    assert run(target, "--draft", draft, "-q", "hello") == (out, "")


def test_json_is_one_object_with_the_documented_keys(target: Path, draft: Path) -> None:
    out, err = run(target, "--draft", draft, "--draft-length", "3", "--json", *NO_END, "hello")
    assert err == ""
    assert out.count("\n") == 1
    figures = json.loads(out)
    kinds = {name: type(value) for name, value in figures.items() if name != "seconds"}
    assert kinds == {
        "text": str,
        "n_tokens": int,
        "tok_per_s": float,
        "ttft_s": float,
        "tpot_s": float,
        "drafted": int,
        "accepted": int,
        "acceptance_rate": float,
        "mean_accepted_length": float,
        "acceptance_by_position": list,
        "finish_reason": str,
        "prompt_tokens": int,
    }
    assert {name: type(value) for name, value in figures["seconds"].items()} == {
        "draft": float,
        "verify": float,
        "other": float,
    }
    assert figures["n_tokens"] == 24
    assert figures["finish_reason"] == "length"
    assert figures["acceptance_rate"] == figures["accepted"] / figures["drafted"]
    assert figures["tok_per_s"] == pytest.approx(1 / figures["tpot_s"])
    assert 1 <= figures["mean_accepted_length"] <= 5
    assert 0 < figures["ttft_s"] < 30
    assert all(0 < seconds < 30 for seconds in figures["seconds"].values())


def test_json_says_null_where_there_is_nothing_to_divide(target: Path) -> None:
    figures = json.loads(run(target, "--no-draft", "--json", "-n", "1", *NO_END, "hello")[0])
    assert figures["n_tokens"] == 1
    assert figures["drafted"] == figures["accepted"] == 0
    for name in ("acceptance_rate", "mean_accepted_length", "tpot_s", "tok_per_s"):
        assert figures[name] is None


def test_the_end_token_ends_the_answer_and_is_not_counted(target: Path) -> None:
    figures = json.loads(run(target, "--no-draft", "--json", "--logit-bias", "511=1000", "hello")[0])
    assert (figures["text"], figures["n_tokens"], figures["finish_reason"]) == ("", 0, "stop")


def test_a_seed_gives_the_same_text_with_and_without_a_draft(target: Path, draft: Path) -> None:
    """On one thread, with short contexts and Q8_0 weights: nearly always the same bytes of logits."""
    exact = ["--temperature", "1", "hello"]
    ways = (["--draft", draft], ["--draft", draft, "--draft-length", "2"], ["--no-draft"])
    texts = {run(target, *way, *exact)[0] for way in ways}
    assert len(texts) == 1
    assert run(target, "--no-draft", "--seed", "2", *exact)[0] not in texts


def test_without_a_seed_answers_differ(target: Path) -> None:
    command = ["run", "--target", target, "--no-draft", "--threads", "1", "-n", "30", "-q", "hello"]
    assert in_process(*command)[1] != in_process(*command)[1]


def test_a_stop_text_ends_the_answer_before_it(target: Path) -> None:
    whole = json.loads(run(target, "--no-draft", "--json", *NO_END, "hello")[0])["text"]
    stop = whole[6:9]
    figures = json.loads(
        run(target, "--no-draft", "--json", *NO_END, "--stop", "never said", "--stop", stop, "hello")[0]
    )
    assert figures["text"] == whole[: whole.index(stop)]
    assert figures["finish_reason"] == "stop"


def test_a_draft_length_is_kept_to_and_without_one_it_is_what_pays(target: Path, draft: Path) -> None:
    """This draft is as large as its target and agrees seldom, so that drafting with it cannot pay."""
    model = ["--draft", draft, "--drafter", "model", "--json", "-n", "120", *NO_END, "hello"]
    fixed = json.loads(run(target, *model, "--draft-length", "3")[0])
    free = json.loads(run(target, *model)[0])
    assert fixed["drafted"] > 100 > free["drafted"]
    assert fixed["n_tokens"] == free["n_tokens"] == 120
    assert fixed["text"] == free["text"]


@pytest.mark.slow
def test_a_cache_that_cannot_be_read_or_written_is_no_error(target: Path, draft: Path, home: Path) -> None:
    """What was learned of a pair is kept there; without it everything is measured anew."""
    shutil.rmtree(home / ".cache")
    (home / ".cache").write_text("no folder")
    _, err = run(target, "--draft", draft, "hello")
    assert "tok/s" in err and "edgespec:" not in err


def test_no_draft_and_drafter_none_are_plain_decoding(target: Path, draft: Path) -> None:
    for files in (["--draft", draft, "--drafter", "none"], ["--draft", draft, "--draft-length", "0"]):
        assert json.loads(run(target, *files, "--json", "hello")[0])["drafted"] == 0
    assert "plain decoding: nothing was drafted" in run(target, "--no-draft", "hello")[1]


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_character_shows_another(target: Path) -> None:
    """A redirected stdout on Windows is cp1252; the answer ended in a UnicodeEncodeError."""
    answer = ["--no-draft", "-n", "120", *NO_END, "hello"]
    assert not run(target, *answer)[0].isascii()
    for encoding in ("ascii", "cp1252"):
        done = edgespec("run", "--target", target, *QUICK, *answer, PYTHONIOENCODING=encoding)
        assert done.returncode == 0, done.stderr
        assert b"tok/s" in done.stderr


@pytest.mark.sample(1)
@posix
@pytest.mark.parametrize("joined", [False, True])
def test_a_reader_that_has_seen_enough_is_no_error(target: Path, joined: bool) -> None:
    with subprocess.Popen(
        [*EDGESPEC, "run", "--target", target, "--no-draft", *QUICK, "-n", "2000", *NO_END, "hello"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if joined else subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert len(process.stdout.read(5)) == 5
        process.stdout.close()  # as `head -c 5` does
        err = process.stderr.read() if process.stderr else b""
        assert process.wait(20) == 0
        assert err == b""


@posix
def test_a_full_disk_or_a_closed_output_is_reported_in_a_sentence(target: Path) -> None:
    command = [*map(str, EDGESPEC), "run", "--target", str(target), "--no-draft", *QUICK, "hello"]
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    for redirected in (">/dev/full", ">&-"):
        done = subprocess.run(
            ["sh", "-c", f'"$@" {redirected}', "sh", *command], stderr=subprocess.PIPE, timeout=30
        )
        lines = [line for line in done.stderr.decode().splitlines() if line]
        assert b"Traceback" not in done.stderr
        assert lines[-1].startswith("edgespec: ")
        assert done.returncode == 1


# ---- run: what is refused ---------------------------------------------------------------------------------


NONSENSE = [
    (["--temperature", "nan"], "temperature is nan"),
    (["--temperature", "-1"], "temperature is -1"),
    (["--temperature", "inf"], "temperature is inf"),
    (["--top-k", "-1"], "top_k is -1"),
    (["--top-p", "1.5"], "top_p is 1.5"),
    (["--min-p", "-0.1"], "min_p is -0.1"),
    (["--typical-p", "7"], "typical_p is 7"),
    (["--top-n-sigma", "-1"], "top_n_sigma is -1"),
    (["--repeat-penalty", "0"], "repeat_penalty is 0"),
    (["--frequency-penalty", "1e9"], "frequency_penalty is 1000000000"),
    (["--presence-penalty", "nan"], "presence_penalty is nan"),
    (["--penalty-last-n", "-5"], "penalty_last_n is -5"),
    (["--logit-bias", "five"], "--logit-bias 'five' is not understood"),
    (["--logit-bias", "5=nan"], "logit_bias of token 5 is nan"),
    (["--logit-bias=-5=1"], "a token of logit_bias is -5"),
    (["-n", "0"], "-n is 0"),
    (["-n", "-7"], "-n is -7"),
    (["--threads", "0"], "the number of threads is 0"),
    (["--threads", "-1"], "the number of threads is -1"),
    (["--threads", "1000000"], "the number of threads is 1000000"),
    (["--gpu-layers", "-7"], "n_gpu_layers is -7"),
    (["--ctx", "1"], "the context length is 1"),
    (["--rope-scale", "0"], "--rope-scale is 0"),
    (["--rope-scale", "nan"], "--rope-scale is nan"),
    (["--rope-scale", "2", "--rope-freq-scale", "0.5"], "say the same"),
    (["--rope-freq-base", "1"], "--rope-freq-base is 1"),
    (["--ctx", "-1"], "the context length is -1"),
    (["--ctx", "999999999999999999"], "the context length is 999999999999999999"),
    (["--grow", "0.6B-F16"], "leave out --target"),
    (["--regex", "a\udcff"], "the regular expression is not text in UTF-8: 'a\\udcff'"),
]
NONSENSE_OF_A_REQUEST = [
    (["--logit-bias", "512=1"], "logit_bias names token 512"),
    (["--stop", ""], "the stop strings are"),
    (["--draft-length", "-1"], "the draft length is -1"),
    (["--draft-length", "99"], "the draft length is 99"),
    (["--drafter", "model"], "name one with --draft"),
]


@pytest.mark.parametrize("wrong, named", [*NONSENSE, *NONSENSE_OF_A_REQUEST])
def test_run_refuses_nonsense_in_one_sentence(target: Path, wrong: list[str], named: str) -> None:
    assert named in refused("run", "--target", target, *wrong, "hello")


def test_files_of_flags_are_read_as_far_as_they_could_be_right(target: Path, tmp_path: Path) -> None:
    """A model named by mistake was read whole, and an empty template was taken for none."""
    files = {"empty": "", "long": "{" * 1_100_000}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for flag, name, printed in (
        ("--json-schema", "long", "has more than 262,144 characters"),
        ("--chat-template-file", "long", "has more than 1,048,576 characters"),
        ("--chat-template-file", "empty", "is empty"),
    ):
        assert printed in refused("run", "--target", target, flag, tmp_path / name, "hello")


def test_an_empty_prompt_is_refused(target: Path) -> None:
    for arguments, stdin in ((["run"], b""), (["run", "-"], b"\n"), (["run", ""], b"")):
        ended = in_process(*arguments, "--target", target, "--no-draft", stdin=stdin)
        assert ended == (2, "", "edgespec: the prompt is empty: say something for the model to answer\n")


@posix
def test_a_closed_standard_input_is_an_empty_one(target: Path) -> None:
    """The pipe over which the child notices its parent's end became its standard input, and it waited."""
    words = [*EDGESPEC, "run", "--target", str(target), "--no-draft", *QUICK]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *words], capture_output=True, timeout=20)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 2
    assert done.stdout == b""


@posix
def test_messages_are_for_nobody_if_standard_error_is_closed(target: Path) -> None:
    """The exit code was 120, Python's for a stream that it could not flush, or messages were in stdout."""
    quick = ["run", "--target", str(target), "--no-draft", *QUICK]
    for arguments, code in (([*quick, "hello"], 0), (["run", "--nope"], 2), (["rm", "nothing"], 2)):
        words = ["sh", "-c", '"$@" 2>&-', "sh", *EDGESPEC, *arguments]
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=30)
        assert done.returncode == code and bool(done.stdout) == (code == 0)


@pytest.mark.parametrize("role", ["--target", "--draft"])
def test_an_empty_file_name_is_refused(target: Path, role: str) -> None:
    """A script's unset variable; the embedded pair answered in its place."""
    files = ["--target", ""] if role == "--target" else ["--target", target, "--draft", ""]
    assert "names no file" in refused("run", *files, "hello")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BAD_FILES: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "missing": (lambda folder, model: folder / "none.gguf", "there is no file"),
    "a folder": (lambda folder, model: folder, "is a folder"),
    "empty": (lambda folder, model: write(folder / "empty.gguf", b""), "is empty"),
    "garbage": (lambda folder, model: write(folder / "g.gguf", bytes(range(256)) * 40), "is not a GGUF file"),
    "garbage behind a header": (
        lambda folder, model: write(folder / "h.gguf", b"GGUF\x03\x00\x00\x00" + bytes(range(256)) * 40),
        "is damaged",
    ),
    "truncated": (lambda folder, model: write(folder / "t.gguf", model.read_bytes()[:-5000]), "cut short"),
    "without a vocabulary": (
        lambda folder, model: tiny_gguf.write_llama(folder / "v.gguf", vocab="none"),
        "has no vocabulary",
    ),
}


@pytest.mark.parametrize(
    "role, what",
    [*(("--target", what) for what in BAD_FILES), *(("--draft", what) for what in ("missing", "truncated"))],
)
def test_a_bad_file_is_reported_in_one_sentence(target: Path, tmp_path: Path, role: str, what: str) -> None:
    make, named = BAD_FILES[what]
    bad = make(tmp_path, target)
    files = ["--target", bad, "--no-draft"] if role == "--target" else ["--target", target, "--draft", bad]
    err = refused("run", *files, "hello", code=1)
    assert bad.name in err and named in err


def test_a_mismatched_pair_is_reported_in_one_sentence(target: Path, tmp_path: Path) -> None:
    other = tiny_gguf.altered(tiny_gguf.make_vocabulary(), texts=tiny_gguf.FOREIGN)
    stranger = tiny_gguf.write_llama(tmp_path / "stranger.gguf", vocab=other)
    err = refused("run", "--target", target, "--draft", stranger, "hello", code=1)
    assert err.startswith("edgespec: stranger.gguf cannot draft for target.gguf: token 5 is ")


def test_a_prompt_longer_than_the_context_is_reported_in_one_sentence(target: Path) -> None:
    err = refused("run", "--target", target, "--no-draft", "--ctx", "64", "word salad " * 500, code=1)
    assert err.startswith("edgespec: the prompt has ")
    assert "available context size of 64" in err


def test_weights_that_are_no_numbers_are_reported_in_one_sentence(tmp_path: Path) -> None:
    import numpy as np

    weights = np.full((512, 64), np.nan, np.float32)
    path = tiny_gguf.write_llama(tmp_path / "nan.gguf", tensors={"output.weight": weights})
    err = refused("run", "--target", path, "--no-draft", *QUICK, "hello", code=1)
    assert err.startswith("edgespec: the model returned nan")


def test_a_model_without_template_and_a_broken_template_are_reported(tmp_path: Path) -> None:
    bare = tiny_gguf.write_llama(tmp_path / "bare.gguf", chat_template=None)
    broken = tiny_gguf.write_llama(tmp_path / "broken.gguf", chat_template="{% for %}")
    assert "the chat template is broken" in refused(
        "run", "--target", broken, "--no-draft", *QUICK, "hello", code=1
    )
    code, _, err = in_process("run", "--target", str(bare), "--no-draft", *QUICK, "hello")
    assert code == 0 and "bare.gguf has no chat template: the prompt is written as ChatML" in err
    told = ("run", "--target", str(bare), "--no-draft", *QUICK, "--chat-template", "llama3", "hello")
    code, _, err = in_process(*told)
    assert code == 0 and "no chat template" not in err
    assert "--chat-template lama is not known" in refused("run", "--chat-template", "lama", *QUICK, "hello")


@pytest.mark.parametrize(
    "wrong", [["run", "--temperature", "hot", "x"], ["run", "--kv-type", "f8", "x"], ["walk"]]
)
def test_what_the_parser_does_not_know_ends_with_code_2(wrong: list[str]) -> None:
    refused(*wrong)


def test_without_a_command_the_commands_are_listed() -> None:
    done = edgespec()
    assert done.returncode == 2
    assert not done.stdout
    for command in ("run", "chat", "serve", "pull", "bench", "verify"):
        assert f"\n    {command} " in done.stderr.decode()


def test_a_misspelt_flag_is_named_with_the_nearest_and_not_what_follows_it() -> None:
    """In `--temprature 1 hi`, 1 was taken for the prompt and `hi` for what is wrong."""
    printed = refused("run", "--temprature", "1", "hi")
    assert "there is no flag --temprature: did you mean --temperature?" in printed and "hi;" not in printed
    assert "unrecognized arguments: there" in refused("run", "hi", "there")


def test_the_help_of_run_begins_with_everyday_flags() -> None:
    """-n was below a hundred lines on files and devices."""
    code, out, _ = in_process("run", "--help")
    assert code == 0 and 0 < out.index("--max-tokens") < out.index("--json-schema") < out.index("--pair")
    assert len(out[: out.index("--max-tokens")].splitlines()) < 25


def test_no_pair_to_remove_is_no_reason_to_pull_one() -> None:
    """`edgespec rm nope` advised `edgespec pull nope`."""
    printed = refused("rm", "nope")
    assert (
        "no pair 'nope' is installed (installed: none): `edgespec list`" in printed and "pull" not in printed
    )


def test_the_embedded_pair_is_called_so_while_it_is_loaded(target: Path) -> None:
    """It was "loading target.gguf"."""
    assert shown_name(tiny.target_path()) == "the embedded pair"
    assert shown_name(tiny.draft_path()) == "its draft" and shown_name(target) == target.name


def test_version_and_help_name_the_program() -> None:
    for arguments, named in ((["--version"], "edgespec 0."), (["run", "--help"], "--no-draft")):
        code, out, _ = in_process(*arguments)
        assert code == 0 and named in out


# ---- a terminal -------------------------------------------------------------------------------------------


@posix
def test_run_on_a_terminal_without_a_prompt_says_so(target: Path) -> None:
    with Terminal("run", "--target", target, "--no-draft") as terminal:
        terminal.wait_for("edgespec: there is no prompt: give one in quotes, or pipe it in")
        assert terminal.process.wait(10) == 2


def test_a_json_py_in_the_users_folder_is_not_imported(target: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported the wrong json')")
    command = [sys.executable, "-P", "-m", "edgespec", "run", "--target", target, *QUICK, "hi"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_llama_cpps_values_for_what_the_file_says_are_taken() -> None:
    said = [
        "--rope-freq-base",
        "0",
        "--yarn-orig-ctx",
        "0",
        "--yarn-ext-factor",
        "-1",
        "--yarn-beta-fast",
        "-1",
    ]
    parser = argparse.ArgumentParser()
    flags.add_model(parser)
    assert not rope(parser.parse_args(said)).given()
    assert rope(parser.parse_args([*said, "--rope-scale", "2"])).given() == {"rope_freq_scale": 0.5}


@pytest.mark.parametrize("wrong", ["a(b", "(?=a)b"])
def test_a_wrong_regular_expression_is_reported_before_a_model_is_loaded(wrong: str, tmp_path: Path) -> None:
    """It took nine seconds, of which the model's loading was most."""
    (tmp_path / "no.gguf").write_bytes(b"this would be told first")
    with pytest.raises(GrammarError, match="^the regular expression cannot be used: "):
        cli.run_command(["run", "--target", str(tmp_path / "no.gguf"), "--regex", wrong, "hi"])


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """`verify` in a pipe was silent for 107 s, and `plan` without a hub for 63."""
    now = 0.0
    clock = lambda: now  # noqa: E731
    with status_line(clock=clock) as silent, status_line(every_s=QUIET_S, clock=clock) as show:
        show("reading headers ...")
        assert not capsys.readouterr().err
        now = QUIET_S
        for text in ("measuring ...", "measuring more ..."):
            silent(text)
            show(text)
    assert capsys.readouterr().err == "measuring ...\n"
