"""The hub is asked with its own client: headers by ranges, files by name, every refusal in one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_models import as_large_as, model_bytes
from local_hub import COMMIT, Content, Fault, LocalHub, Repo

from edgespec_models.choose_file import choose, parse_wanted, quantisation_of
from edgespec_models.gguf_header import HeaderError
from edgespec_models.hub import Hub, HubFile, Repository
from edgespec_models.hub_errors import HubError
from edgespec_models.model_facts import facts_of


@pytest.fixture
def local() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def hub(local: LocalHub, tmp_path: Path) -> Hub:
    return Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)


def test_a_repository_is_listed_with_sizes_and_hashes(local: LocalHub, hub: Hub) -> None:
    local.add("org/m-GGUF", {"m-Q4_0.gguf": b"x" * 100})
    repository = hub.repository("org/m-GGUF")
    file = repository.files["m-Q4_0.gguf"]
    assert (repository.commit, repository.licence, file.size) == (COMMIT, "apache-2.0", 100)
    assert file.sha256 and len(file.sha256) == 64


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_a_header_of_a_large_file_takes_under_16_mb(
    local: LocalHub, hub: Hub, test_data: Path, name: str
) -> None:
    vocabulary = (test_data / "vocab" / f"ggml-vocab-{name}.gguf").read_bytes()
    local.add("org/m-GGUF", {"m.gguf": as_large_as(vocabulary, 5_000_000_000)})
    header, fetched = hub.header(hub.repository("org/m-GGUF").files["m.gguf"])
    assert facts_of(header).name == name
    until = time.monotonic() + 5
    while local.served["m.gguf"] < fetched and time.monotonic() < until:
        time.sleep(0.01)  # the hub counts what it has sent, a moment after we have it
    assert len(header.raw) <= fetched == local.served["m.gguf"] < 9_000_000
    ranges = {asked for where, _, asked in local.requests if where == "store"}
    assert ranges and "all" not in ranges


def test_a_store_that_ignores_ranges_is_left_in_time(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    """Such a mirror sends all of a file of many gigabytes, whatever was asked for."""
    local.add("org/m-GGUF", {"m.gguf": as_large_as(model_bytes(tmp_path), 20_000_000_000)})
    local.faults.append(Fault("store", ignore_range=True))
    header, fetched = hub.header(hub.repository("org/m-GGUF").files["m.gguf"])
    assert header.architecture == "llama" and fetched < 2_000_000


def test_a_token_is_shown_to_the_hub_and_not_to_its_store(local: LocalHub, tmp_path: Path) -> None:
    local.add("org/m", {"m.gguf": model_bytes(tmp_path)}, private=True, needs_token="hf_right")
    hub = Hub(endpoint=local.endpoint, token="hf_right", cache=tmp_path / "hub", offline=False)
    hub.header(hub.repository("org/m").files["m.gguf"])
    assert local.tokens_at_store == []


def test_a_page_in_place_of_a_model_is_told(local: LocalHub, hub: Hub) -> None:
    local.add("org/m", {"m.gguf": b"<!doctype html>" * 100})
    with pytest.raises(HeaderError, match="m.gguf is not a GGUF file"):
        hub.header(hub.repository("org/m").files["m.gguf"])


# --- refusals


def refusal(hub: Hub, repo: str = "org/m", revision: str | None = None) -> str:
    with pytest.raises(HubError) as caught:
        repository = hub.repository(repo, revision)
        hub.header(next(iter(repository.files.values())))
    message = str(caught.value)
    assert message.count("\n") == 0 and "Error" not in message
    return message


def test_a_repository_that_is_not_there(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    assert "has no org/m, or it is private, then log in" in refusal(hub)
    mine = Hub(endpoint=local.endpoint, token="hf_mine", cache=tmp_path, offline=False)
    assert "has no org/m, or your token may not see it: check the spelling" in refusal(mine)


def test_a_gated_repository_says_where_its_terms_are(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local.add("org/m", {"m.gguf": b"x"}, gated=True, needs_token="hf_right")
    said = refusal(hub)
    assert f"is gated: accept its terms at {local.endpoint}/org/m, then log in with `hf auth login`" in said
    other = Hub(endpoint=local.endpoint, token="hf_other", cache=tmp_path, offline=False)
    assert "your token has no access yet: accept its terms" in refusal(other)


@pytest.mark.parametrize("where", ["api", "resolve", "store"])
@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (429, {"Retry-After": "77"}, "too many requests from here: pull again in 77 s; those who log in"),
        (429, {}, "pull again in a few minutes"),
        (500, {}, "has a fault of its own (500)"),
        (401, {}, "wants to know who asks"),
        (403, {}, "does not let you read"),
        (404, {"X-Error-Code": "EntryNotFound"}, "it was renamed or removed"),
        (418, {}, "answers 418"),
    ],
)
def test_every_answer_of_the_hub_is_one_sentence(
    local: LocalHub, hub: Hub, where: str, status: int, headers: dict[str, str], said: str
) -> None:
    local.add("org/m", {"m.gguf": b"x"})
    local.faults.append(Fault(where, status=status, headers=headers))  # type: ignore[arg-type]
    assert said in refusal(hub)


def test_a_connection_that_breaks_is_told(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local.add("org/m", {"m.gguf": model_bytes(tmp_path)})
    local.faults.append(Fault("store", cut_after=100, times=1))
    assert hub.header(hub.repository("org/m").files["m.gguf"])[0].architecture == "llama", "once is forgiven"
    hub = Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "other", offline=False)
    local.faults.append(Fault("store", cut_after=100))
    assert "broke while m.gguf of org/m was asked for: pull again" in refusal(hub)


def test_a_hub_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    hub = Hub(endpoint="http://127.0.0.1:9", token=False, cache=tmp_path, offline=False)
    assert "http://127.0.0.1:9 cannot be reached for org/m: check the network" in refusal(hub)


@pytest.mark.parametrize("repo", ["org/a b", "a/b/c", "-x/y", "x" * 200 + "/y"])
def test_a_name_that_is_none_is_told(hub: Hub, repo: str) -> None:
    assert "write owner/name" in refusal(hub, repo)


def test_a_revision_that_is_not_there_is_told(local: LocalHub, hub: Hub) -> None:
    local.add("org/m", {"m.gguf": b"x"})
    assert "no such revision" in refusal(hub, revision="v9")


@pytest.mark.parametrize("commit", ["", "../../x"])
def test_an_answer_that_makes_no_sense_is_told(local: LocalHub, hub: Hub, commit: str) -> None:
    local.repos["org/m"] = Repo({"m.gguf": Content(b"x", 1)}, commit=commit)
    assert "does not say what org/m holds: check HF_ENDPOINT" in refusal(hub)


def test_offline_what_is_not_here_is_told_without_asking_anybody(local: LocalHub, tmp_path: Path) -> None:
    hub = Hub(endpoint=local.endpoint, cache=tmp_path, offline=True)
    assert "offline mode is on: unset HF_HUB_OFFLINE" in refusal(hub)
    assert local.requests == []


# --- which file


def repository(*names: str) -> Repository:
    return Repository("o/r", "c", {name: HubFile("o/r", "c", name, 10, None) for name in names}, False, "")


FILES = repository(
    "README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-m-F16.gguf", "m-imatrix.gguf",
    "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", "m-Q6_K-00001-of-00002.gguf",
)  # fmt: skip


@pytest.mark.parametrize(
    ("which", "draft", "names"),
    [
        ("", False, ["m-Q4_K_M.gguf"]),
        ("", True, ["m-Q8_0.gguf"]),
        ("q8_0", False, ["m-Q8_0.gguf"]),
        ("UD-Q4_K_XL", False, ["m-UD-Q4_K_XL.gguf"]),
        ("bf16", False, ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("m-Q8_0.gguf", True, ["m-Q8_0.gguf"]),
        ("BF16/m-BF16-00002-of-00002.gguf", False, ["BF16/m-BF16-00001-of-00002.gguf",
                                                    "BF16/m-BF16-00002-of-00002.gguf"]),
    ],
)  # fmt: skip
def test_the_file_that_is_meant_is_found(which: str, draft: bool, names: list[str]) -> None:
    assert [part.name for part in choose(FILES, which, draft=draft).parts] == names


@pytest.mark.parametrize(
    ("files", "which", "said"),
    [
        (FILES, "Q5_K_M", "has no Q5_K_M: it has BF16, Q4_K_M, Q8_0, UD-Q4_K_XL"),
        (FILES, "Q6_K", "has no Q6_K"),  # a part of it is missing
        (repository("README.md"), "", "holds no GGUF model"),
        (repository("a-Q4_0.gguf", "b-Q4_0.gguf"), "", "several models .* o/r:a-Q4_0.gguf"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(files: Repository, which: str, said: str) -> None:
    with pytest.raises(HubError, match=said):
        choose(files, which, draft=False)


def test_quantisations_are_read_from_names() -> None:
    names = {
        "Qwen3-8B-Q4_K_M.gguf": "Q4_K_M", "a.IQ3_XXS.gguf": "IQ3_XXS", "m-f16.gguf": "F16", "plain.gguf": "",
        "qwen2.5-coder-0.5b-q8_0.gguf": "Q8_0", "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    }  # fmt: skip
    assert {name: quantisation_of(name) for name in names} == names


@pytest.mark.parametrize(
    "text", ["o/r:Q4_0", "https://huggingface.co/o/r:Q4_0", "hf.co/o/r:Q4_0", "hf://o/r:Q4_0"]
)
def test_repositories_are_named_in_all_usual_ways(text: str) -> None:
    assert str(parse_wanted(text)) == "o/r:Q4_0"


def test_nonsense_is_told_what_to_write() -> None:
    with pytest.raises(HubError, match="'a/b/c' is neither a pair of the catalogue nor a repository"):
        parse_wanted("a/b/c")
