"""Pairs on this machine: listed, shown, imported where they lie, removed; run by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tiny_gguf
from filelock import FileLock
from tiny_projector import write_projector

from edgespec.commands import cli
from edgespec.commands.pairs.words import ago, list_lines
from edgespec.system import config
from edgespec_models import tiny
from edgespec_models.shelf.found import find_models, find_pairs
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Speed, Store

Captured = pytest.CaptureFixture[str]


def write(path: Path, *, d: int = 32, texts: dict[int, str] | None = None, n_vocab: int = 512) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = tiny_gguf.altered(tiny_gguf.make_vocabulary(n_vocab), texts=texts)
    return tiny_gguf.write_llama(path, d=d, layers=1, vocab=vocabulary)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "Big Model.gguf", d=128), write(tmp_path / "small.gguf")


def printed_text(capsys: Captured, code: int, *words: str | Path) -> str:
    assert cli.main([str(word) for word in words]) == code
    out = capsys.readouterr()
    if code:
        assert out.err.startswith("edgespec: ") and out.err.count("\n") == 1
    return out.out + out.err


def test_local_files_are_imported_listed_shown_and_forgotten(
    files: tuple[Path, Path], capsys: Captured
) -> None:
    assert "as big-model; next: edgespec chat" in printed_text(capsys, 0, "import", *files)
    listed = printed_text(capsys, 0, "list")
    assert "*  big-model  Big Model.gguf  small.gguf" in listed and "not measured" in listed
    shown = printed_text(capsys, 0, "show", "big-model")
    assert str(files[0]) in shown and "check   the vocabularies match" in shown
    assert "a local file, not compared with any hash" in shown
    assert json.loads(printed_text(capsys, 0, "show", "big-model", "--json"))["draft"]["paths"] == [
        str(files[1])
    ]
    assert json.loads(printed_text(capsys, 0, "list", "--json"))["pairs"][0]["default"] is True
    removed = printed_text(capsys, 0, "rm", "big-model")
    assert "removed big-model, no file was deleted" in removed and "EdgeSpec did not download it" in removed
    assert all(path.exists() for path in files)
    assert "no pair is installed, so the embedded one answers" in printed_text(capsys, 0, "list")


def test_mistakes_are_reported_in_one_sentence(
    files: tuple[Path, Path], tmp_path: Path, capsys: Captured
) -> None:
    stranger = write(tmp_path / "stranger.gguf", texts=tiny_gguf.FOREIGN)
    assert "stranger.gguf cannot draft for Big Model.gguf" in printed_text(
        capsys, 1, "import", files[0], stranger
    )
    assert "there is no file" in printed_text(capsys, 1, "import", tmp_path / "none.gguf")
    (tmp_path / "page.gguf").write_text("<html>")
    assert "is not a GGUF file" in printed_text(capsys, 1, "import", tmp_path / "page.gguf", "--target-only")
    assert "no pair 'nothing' is installed" in printed_text(capsys, 2, "rm", "nothing")
    assert "no pair 'nothing' is installed" in printed_text(capsys, 2, "show", "nothing")
    assert "`edgespec import a.gguf` makes one" in printed_text(capsys, 2, "show", "a.gguf")
    assert "cannot name a pair" in printed_text(capsys, 2, "import", *files, "--name", "Ä")


def test_a_pair_of_the_catalogue_is_shown_before_it_is_installed(capsys: Captured) -> None:
    shown = printed_text(capsys, 0, "show", "qwen3-8b")
    assert "`edgespec pull qwen3-8b` gets it" in shown and "not checked on the hub: " in shown
    assert "Python" in printed_text(capsys, 0, "show", "embedded")
    shipped = json.loads(printed_text(capsys, 0, "show", "embedded", "--json"))  # it said the same prose
    assert (shipped["name"], shipped["source"], shipped["default"]) == ("embedded", "shipped", True)
    assert shipped["target"]["paths"] == [str(tiny.target_path())] and not shipped["missing"]


def test_a_target_alone_gets_the_draft_that_was_found(
    files: tuple[Path, Path], home: Path, capsys: Captured
) -> None:
    write(home / ".lmstudio/models/pub/small-GGUF/small-Q8_0.gguf")
    imported = printed_text(capsys, 0, "import", files[0])
    assert "pub/small-GGUF/small-Q8_0.gguf of LM Studio fits as its draft" in imported
    assert "with draft small-Q8_0.gguf as big-model" in imported
    assert "without a draft" in printed_text(capsys, 0, "import", files[0], "--target-only")


# --- what other programs have


def test_ollamas_names_are_told_apart_and_none_leads_out_of_its_folder(home: Path, capsys: Captured) -> None:
    """Two repositories with files of one name had one label, and the last was taken; an alias could not be
    named; and a digest such as `../../x` was followed wherever it led."""
    outside = write(home / "outside.gguf")
    (home / ".ollama/models").mkdir(parents=True)
    names = ("hf.co/one/Tiny-GGUF/Q4_0", "hf.co/two/Tiny-GGUF/Q4_0", "registry.ollama.ai/me/own/latest",
             "registry.ollama.ai/library/alias/latest", "flat")  # fmt: skip
    for i, name in enumerate(names):
        digest = f"sha256:{min(i, 2)}ab"
        write(home / ".ollama/models/blobs" / digest.replace(":", "-"), d=64 + 32 * min(i, 2))
        manifest = home / ".ollama/models/manifests" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
        manifest.write_text(json.dumps({"layers": [layer]}))
    hostile = home / ".ollama/models/manifests/registry.ollama.ai/library/evil/latest"
    hostile.parent.mkdir(parents=True)
    for digest in ("../../../../outside.gguf", str(outside)):
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
        hostile.write_text(json.dumps({"layers": [layer]}))
        found = find_models()
        assert {model.label for model in found} == {
            "hf.co/one/Tiny-GGUF:Q4_0",
            "hf.co/two/Tiny-GGUF:Q4_0",
            ":flat",
        }
        assert {name for model in found for name in model.also} == {"alias:latest", "me/own:latest"}
    for label, n in (
        ("hf.co/one/Tiny-GGUF:Q4_0", "0"),
        ("hf.co/two/Tiny-GGUF:Q4_0", "1"),
        ("alias:latest", "2"),
    ):
        printed_text(capsys, 0, "import", label, "--target-only", "--name", "mine")
        assert Store(config.data_folder()).get("mine").target.path.name == f"sha256-{n}ab"


def test_what_other_programs_downloaded_is_found_and_not_copied(home: Path, capsys: Captured) -> None:
    studio = write(home / ".lmstudio/models/pub/big-GGUF/big-Q4_K_M.gguf", d=128)
    projector = write_projector(home / ".lmstudio/models/pub/big-GGUF/mmproj-big.gguf", "gemma3", 128)
    eye = write_projector(home / "eye.gguf", "gemma3", 32)
    for part in (1, 2):
        write(home / f".cache/llama.cpp/split-0000{part}-of-00002.gguf", n_vocab=400)
    write(home / ".cache/llama.cpp/half-00001-of-00002.gguf")
    blob = write(home / ".ollama/models/blobs/sha256-abc")
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/small/1b"
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:t"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"},
        {"mediaType": "application/vnd.ollama.image.projector", "digest": "sha256:eye"},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    eye = eye.rename(blob.with_name("sha256-eye"))
    (manifest.parent / "broken").write_text("{")
    cached = home / ".cache/huggingface/hub/models--org--m/snapshots/c/m.gguf"
    cached.parent.mkdir(parents=True)
    cached.symlink_to(studio)  # the same content under another name
    found = find_models()
    assert {(model.program, model.label) for model in found} == {
        ("LM Studio", "pub/big-GGUF/big-Q4_K_M.gguf"),
        ("llama.cpp", "split-00001-of-00002.gguf"),
        ("Ollama", "small:1b"),
    }
    [(big, small)] = find_pairs(found)[0]
    assert (big.paths, small.paths) == ((studio,), (blob,))
    listed = printed_text(capsys, 0, "import")
    assert "fits: edgespec import 'pub/big-GGUF/big-Q4_K_M.gguf' 'small:1b'" in listed
    printed_text(capsys, 0, "import", "pub/big-GGUF/big-Q4_K_M.gguf", "small:1b", "--name", "mine")
    mine = Store(config.data_folder()).get("mine")
    assert mine.target.path == studio and mine.projector and mine.projector.path == projector
    printed_text(capsys, 0, "import", "small:1b", "--target-only", "--name", "seeing")
    assert "reads   pictures, by sha256-eye" in printed_text(capsys, 0, "show", "seeing")
    found_there = Store(config.data_folder()).get("seeing").projector
    assert found_there and found_there.path == eye


def test_folders_are_found_where_the_environment_moved_them(tmp_path: Path) -> None:
    environment = {"LLAMA_CACHE": str(tmp_path / "l"), "HF_HOME": str(tmp_path / "h")}
    write(tmp_path / "l/a.gguf")
    write(tmp_path / "h/hub/models--o--m/snapshots/c/b.gguf", d=64)
    found = find_models(environment, tmp_path / "nobody")
    assert [(model.program, model.label) for model in found] == [
        ("llama.cpp", "a.gguf"),
        ("hub cache", "o/m:b.gguf"),
    ]


def test_of_several_drafts_the_smallest_that_fits_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "l/big.gguf", d=256)
    write(tmp_path / "l/small.gguf", d=32)
    write(tmp_path / "l/middle.gguf", d=48)
    write(tmp_path / "l/other.gguf", d=16, texts=tiny_gguf.FOREIGN)
    (tmp_path / "l/page.gguf").write_text("<html>")
    pairs, useless = find_pairs(find_models({"LLAMA_CACHE": str(tmp_path / "l")}, tmp_path))
    assert [(big.label, small.label) for big, small in pairs] == [("big.gguf", "small.gguf")]
    assert list(useless) == ["page.gguf"]


def test_nothing_found_is_stated(capsys: Captured) -> None:
    assert "LM Studio, Ollama" in printed_text(capsys, 0, "import")


def test_what_an_interrupted_pull_left_is_reported_and_can_be_deleted(home: Path, capsys: Captured) -> None:
    part = home / ".cache/huggingface/hub/models--org--m/blobs/abc.0a1b.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(5_000))
    theirs = part.with_name("def.1234.incomplete")
    theirs.write_bytes(b"of a program that runs")
    lock = FileLock(home / ".cache/huggingface/hub/.locks/models--org--m/def.lock")
    Path(lock.lock_file).parent.mkdir(parents=True)
    lock.acquire()
    assert "unfinished: 5.00 kB of org/m, left by a download that was killed" in printed_text(
        capsys, 0, "list"
    )
    assert "removed what was left over, 5.00 kB are free" in printed_text(capsys, 0, "rm", "--unfinished")
    assert not part.exists() and theirs.exists()
    lock.release()
    assert "there is nothing to remove" in printed_text(capsys, 2, "rm")


# --- run by name


def test_commands_take_a_pair_by_name_and_the_last_one_by_default(
    files: tuple[Path, Path], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.pairs.files import pair_files

    def taken(*words: str) -> tuple[Path, Path | None]:
        return pair_files(cli.parsed(words))

    printed_text(capsys, 0, "import", *files, "--name", "first")
    printed_text(capsys, 0, "import", files[1], "--target-only", "--name", "second")
    assert taken("run", "x") == (files[1], None)
    assert taken("run", "x", "--pair", "first") == files
    assert taken("run", "x", "--pair", "first", "--no-draft") == (files[0], None)
    assert taken("serve", "first") == taken("bench", "--pair", "first") == files
    assert taken("run", "x", "--pair", "embedded") == (tiny.target_path(), tiny.draft_path())
    assert taken("run", "x", "--target", "a.gguf") == (Path("a.gguf"), None)
    monkeypatch.setenv("EDGESPEC_TARGET", "b.gguf")
    assert taken("run", "x") == (Path("b.gguf"), None)
    assert taken("run", "x", "--pair", "first") == files, "a flag beats the environment"
    assert Store(config.data_folder()).get("first").last_used


def test_any_part_of_a_split_model_names_it(tmp_path: Path) -> None:
    """llama.cpp loads a split model by its first part alone, and complained of another."""
    from edgespec.pairs.files import pair_files

    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    asked = cli.parsed(["run", "x", "--target", str(second)])
    assert pair_files(asked) == (second, None), "the name alone proves nothing"
    first.touch()
    assert pair_files(asked) == (first, None)


def test_a_pair_whose_files_are_gone_says_how_to_get_them(files: tuple[Path, Path], capsys: Captured) -> None:
    from edgespec.errors import ModelFileError, SettingError
    from edgespec.pairs.files import pair_files

    printed_text(capsys, 0, "import", *files, "--name", "mine")
    files[1].unlink()
    assert "files are missing" in printed_text(capsys, 0, "list")
    with pytest.raises(
        ModelFileError, match="pair mine lacks small.gguf, which is no longer at .*edgespec rm mine"
    ):
        pair_files(cli.parsed(["run", "x"]))
    with pytest.raises(SettingError, match="leave out --target and --draft"):
        pair_files(cli.parsed(["run", "x", "--pair", "mine", "--target", "y"]))
    with pytest.raises(SettingError, match="no pair 'other' is installed"):
        pair_files(cli.parsed(["run", "x", "--pair", "other"]))


def test_the_table_tells_last_use_and_speed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    model = InstalledModel((str(path),), 5_030_000_000)
    pair = InstalledPair("p", model, None, "pulled", 0.0, last_used=100.0, speed=Speed(30.0, 20.0, 0.0))
    lines = list_lines([pair], "p", now=100.0 + 3 * 86_400)
    assert lines[1] == "*  p     m.gguf  none   5.03 GB  3 days ago  30.0 tok/s (1.50 x plain)"
    assert [ago(then, 10 * 86_400) for then in (None, 864_000.0, 9 * 86_400 - 1)] == [
        "never",
        "today",
        "yesterday",
    ]


def test_a_name_with_a_tilde_and_nobody_is_a_file_that_is_not_there(capsys: Captured) -> None:
    """It ended in a traceback: pathlib raises RuntimeError for a user that the system does not know."""
    assert "there is no file ~nobody-of-this-name/a.gguf" in printed_text(
        capsys, 1, "import", "~nobody-of-this-name/a.gguf"
    )


@pytest.mark.skipif(os.name != "posix", reason="users as POSIX has them")
def test_a_user_without_a_home_is_reported_in_a_sentence(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's user that the system does not know ended every command in a traceback."""
    import pwd

    def nobody(uid: int) -> object:
        raise KeyError(uid)

    for name in ("HOME", "EDGESPEC_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert "there is no home folder: set HOME, or EDGESPEC_DATA_DIR" in printed_text(capsys, 2, "list")
