"""The hub is asked with its own client: headers by ranges, files by name, every refusal in one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_models import as_large_as, model_bytes
from local_hub import COMMIT, Content, Fault, LocalHub, Repo

from edgespec_models.gguf.facts import facts_of
from edgespec_models.gguf.header import HeaderError
from edgespec_models.hub import retries
from edgespec_models.hub.choose_file import WantedFile, choose, parse_wanted, quantisation_of, smaller_than
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub, HubFile, Repository


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)


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
    assert (repository.commit, file.size) == (COMMIT, 100)
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


def test_a_page_in_place_of_a_model_is_reported(local: LocalHub, hub: Hub) -> None:
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
    ("status", "headers", "expected"),
    [
        (429, {"Retry-After": "77"}, "too many requests from here: pull again in 77 s; a login allows more"),
        (429, {}, "pull again in a few minutes"),
        (500, {}, "has an internal error (500)"),
        (401, {}, "requires a login"),
        (403, {}, "does not let you read"),
        (404, {"X-Error-Code": "EntryNotFound"}, "it was renamed or removed"),
        (418, {}, "answers 418"),
    ],
)
def test_every_answer_of_the_hub_is_one_sentence(
    local: LocalHub, hub: Hub, where: str, status: int, headers: dict[str, str], expected: str
) -> None:
    local.add("org/m", {"m.gguf": b"x"})
    local.faults.append(Fault(where, status=status, headers=headers))  # type: ignore[arg-type]
    assert expected in refusal(hub)


def test_a_connection_that_breaks_is_reported(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local.add("org/m", {"m.gguf": model_bytes(tmp_path)})
    local.faults.append(Fault("store", cut_after=100, times=1))
    assert hub.header(hub.repository("org/m").files["m.gguf"])[0].architecture == "llama", "once is forgiven"
    hub = Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "other", offline=False)
    local.faults.append(Fault("store", cut_after=100))
    assert "broke while m.gguf of org/m was asked for: pull again" in refusal(hub)


def test_a_hub_that_cannot_be_reached_is_reported(tmp_path: Path) -> None:
    hub = Hub(endpoint="http://127.0.0.1:9", token=False, cache=tmp_path, offline=False)
    assert "http://127.0.0.1:9 cannot be reached for org/m: check the network" in refusal(hub)


@pytest.mark.parametrize("repo", ["org/a b", "a/b/c", "-x/y", "x" * 200 + "/y"])
def test_a_name_that_is_none_is_reported(hub: Hub, repo: str) -> None:
    assert "write owner/name" in refusal(hub, repo)


def test_a_revision_that_is_not_there_is_reported(local: LocalHub, hub: Hub) -> None:
    local.add("org/m", {"m.gguf": b"x"})
    assert "no such revision" in refusal(hub, revision="v9")


@pytest.mark.parametrize("commit", ["", "../../x"])
def test_an_answer_that_makes_no_sense_is_reported(local: LocalHub, hub: Hub, commit: str) -> None:
    local.repos["org/m"] = Repo({"m.gguf": Content(b"x", 1)}, commit=commit)
    assert "does not say what org/m holds: check HF_ENDPOINT" in refusal(hub)


def test_offline_what_is_not_here_is_reported_without_asking_anybody(local: LocalHub, tmp_path: Path) -> None:
    hub = Hub(endpoint=local.endpoint, cache=tmp_path, offline=True)
    assert "offline mode is on: unset HF_HUB_OFFLINE" in refusal(hub)
    assert local.requests == []


# --- which file


def repository(*names: str) -> Repository:
    return Repository("o/r", "c", {name: HubFile("o/r", "c", name, 10, None) for name in names})


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
    ("files", "which", "expected"),
    [
        (FILES, "Q5_K_M", r"has no Q5_K_M: it has BF16 \(20 bytes\), Q4_K_M \(10 "),
        (FILES, "Q6_K", "has no Q6_K: .*; it lacks m-Q6_K-00002-of-00002.gguf, one of the 2 parts of m-Q6_K"),
        (repository("m-Q6_K-00001-of-00002.gguf"), "", "o/r lacks m-Q6_K-00002-of-00002.gguf, one of"),
        (repository("m-Q6_K-00002-of-00002.gguf"), "", "o/r lacks m-Q6_K-00001-of-00002.gguf, one of"),
        (repository("README.md"), "", "holds no GGUF model"),
        (repository("a-Q4_0.gguf", "b-Q4_0.gguf"), "", "several models: .* o/r:a-Q4_0.gguf"),
    ],
)
def test_what_is_not_there_is_reported_with_what_is(files: Repository, which: str, expected: str) -> None:
    with pytest.raises(HubError, match=expected):
        choose(files, which, draft=False)


UNUSUAL = [
    "m-UD-IQ1_S.gguf", "m-UD-Q2_K_XL.gguf", "m-UD-IQ3_XXS.gguf", "m-Q3_K_M.gguf", "m-Q3_K_S.gguf",
    "m-IQ4_NL.gguf", "m-UD-Q4_K_XL.gguf", "m-UD-Q6_K_XL.gguf", "m-BF16.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("without", "draft", "chosen"),
    [("", False, "UD-Q4_K_XL"), ("", True, "UD-Q4_K_XL"), ("Q4", False, "UD-Q6_K_XL"), ("Q", False, "BF16")],
)
def test_a_repository_without_the_usual_quantisations_has_a_usual_one_too(
    without: str, draft: bool, chosen: str
) -> None:
    """Where there are dynamic ones alone, "has no : it has UD-Q4_K_XL" was said."""
    names = [name for name in UNUSUAL if not without or without not in name]
    assert choose(repository(*names), "", draft=draft).quantisation == chosen


def sized(**sizes: int) -> Repository:
    files = {f"m-{q}.gguf": HubFile("o/r", "c", f"m-{q}.gguf", n, None) for q, n in sizes.items()}
    return Repository("o/r", "c", files)


def test_memory_decides_what_is_usual() -> None:
    """Q4_K_M was taken on every machine."""
    there = sized(Q8_0=900, Q5_K_M=600, Q4_K_M=500, Q3_K_M=400, Q2_K=300)
    chosen = {
        memory: choose(there, "", draft=False, memory=memory).quantisation for memory in (900, 500, 100)
    }
    assert chosen == {900: "Q4_K_M", 500: "Q3_K_M", 100: "Q3_K_M"}, "nothing of two bits unasked"
    assert choose(there, "Q8_0", draft=False, memory=100).quantisation == "Q8_0", "who names one gets it"
    smaller = smaller_than(there, choose(there, "Q5_K_M", draft=False))
    assert [model.quantisation for model in smaller] == ["Q4_K_M", "Q3_K_M", "Q2_K"]


def test_heads_are_no_models() -> None:
    """unsloth has heads in a folder; one of them was recommended as the model."""
    names = [
        "MTP/gemma-4-E2B-it-Q8_0-MTP.gguf",
        "gemma-4-E2B-it-Q4_K_M.gguf",
        "m-mmproj.gguf",
        "eagle3/a.gguf",
    ]
    found = choose(repository(*names), "", draft=True)
    assert found.first.name == "gemma-4-E2B-it-Q4_K_M.gguf"


def test_a_split_of_absurdly_many_parts_costs_nothing() -> None:
    names = [f"m-Q4_0-{i:05d}-of-99999.gguf" for i in range(1, 200)]
    with pytest.raises(HubError, match="several models"):
        choose(repository(*names), "", draft=False)


def test_quantisations_are_read_from_names() -> None:
    names = {
        "Qwen3-8B-Q4_K_M.gguf": "Q4_K_M", "a.IQ3_XXS.gguf": "IQ3_XXS", "m-f16.gguf": "F16", "plain.gguf": "",
        "qwen2.5-coder-0.5b-q8_0.gguf": "Q8_0", "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    }  # fmt: skip
    assert {name: quantisation_of(name) for name in names} == names


@pytest.mark.parametrize(
    "text",
    [
        "o/r:Q4_0", "https://huggingface.co/o/r:Q4_0", "hf.co/o/r:Q4_0", "hf://o/r:Q4_0",
        "https://huggingface.co/o/r/tree/main/Q4_0", "huggingface.co/o/r/tree/main/Q4_0/",
    ],
)  # fmt: skip
def test_repositories_are_named_in_all_usual_ways(text: str) -> None:
    assert str(parse_wanted(text)) == "o/r:Q4_0"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "https://huggingface.co/o/r/resolve/main/m-Q4_0.gguf?download=true",
            WantedFile("o/r", "m-Q4_0.gguf"),
        ),
        ("https://huggingface.co/o/r/blob/v1/a%20b/m.gguf", WantedFile("o/r", "a b/m.gguf", "v1")),
        ("https://huggingface.co/o/r/tree/main", WantedFile("o/r", "")),
        ("https://huggingface.co/o/r#files", WantedFile("o/r", "")),
    ],
)
def test_addresses_of_the_browser_are_understood(text: str, wanted: WantedFile) -> None:
    assert parse_wanted(text) == wanted


def test_a_file_is_found_by_its_name_without_the_folder() -> None:
    named = choose(FILES, "m-BF16-00001-of-00002.gguf", draft=False)
    assert named.first.name == "BF16/m-BF16-00001-of-00002.gguf"


# --- asking again


@pytest.mark.parametrize("where", ["api", "resolve", "store"])
@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_one_fault_of_the_hub_ends_nothing(
    local: LocalHub, hub: Hub, tmp_path: Path, where: str, status: int
) -> None:
    """A single 500, 503, or 429 with Retry-After, while a repository was listed ended the pull."""
    local.add("org/m", {"m.gguf": model_bytes(tmp_path)})
    headers = {"Retry-After": "0"} if status == 429 else {}
    local.faults.append(Fault(where, status=status, headers=headers, times=1))  # type: ignore[arg-type]
    assert hub.header(hub.repository("org/m").files["m.gguf"])[0].architecture == "llama"


@pytest.mark.parametrize("where", ["api", "resolve", "store"])
def test_one_reset_ends_nothing(local: LocalHub, hub: Hub, tmp_path: Path, where: str) -> None:
    """One TCP reset ended a pull, five times of five."""
    local.add("org/m", {"m.gguf": model_bytes(tmp_path)})
    local.faults.append(Fault(where, reset=True, times=1))  # type: ignore[arg-type]
    assert hub.header(hub.repository("org/m").files["m.gguf"])[0].architecture == "llama"


def test_what_is_asked_to_be_waited_is_read() -> None:
    assert retries.asked_wait("12") == 12.0 and retries.asked_wait("soon") is None
    assert retries.asked_wait("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (retries.asked_wait("Wed, 21 Oct 2215 07:28:00 GMT") or 0) > 1e9


def test_a_page_of_the_networks_login_is_named(local: LocalHub, hub: Hub) -> None:
    """ "Expecting value: line 1 column 1" was said."""
    local.add("org/m", {})
    local.faults.append(Fault("api", page=b"<html>Welcome to the hotel</html>"))
    assert "is not the hub, but a page of a proxy or of the network's login" in refusal(hub)


@pytest.mark.parametrize("token", ["hf_größer", "hf_a\nb"])
def test_a_token_that_is_none_is_reported(local: LocalHub, tmp_path: Path, token: str) -> None:
    """ "'ascii' codec can't encode characters" was said."""
    local.add("org/m", {})
    hub = Hub(endpoint=local.endpoint, token=token, cache=tmp_path, offline=False)
    assert "the token for the hub has invalid characters: set HF_TOKEN" in refusal(hub)


def test_nonsense_is_reported_what_to_write() -> None:
    with pytest.raises(HubError, match="'a/b/c' is neither a pair of the catalogue nor a repository"):
        parse_wanted("a/b/c")
    for address in ("registry.ollama.ai/library/llama3:8b", "https://ollama.com/library/llama3"):
        with pytest.raises(HubError, match="Ollama's registry, not a repository of the hub.*edgespec import"):
            parse_wanted(address)
