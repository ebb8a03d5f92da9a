"""Sessions outlive the program: what is kept, found, locked, and what happens when the disk fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event

import pytest
from full_disk import no_room
from textual.app import App

from edgespec.errors import SessionError
from edgespec_tui.screens.sessions import SessionsScreen
from edgespec_tui.sessions import listed, session_file
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.export import rescue
from edgespec_tui.sessions.listed import Listed, name_of
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.tools.values import Call, saved

posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")
SOON_S = 10.0


class Opened:
    """Sessions of one folder, opened as often as a test wants; what they had to tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []
        self.now = 1_700_000_000.0
        self.all: list[Sessions] = []
        self.busy_s = session_file.BUSY_S

    def __call__(self) -> Sessions:
        made = Sessions(
            self.folder, on_notice=self.notices.append, clock=lambda: self.now, busy_s=self.busy_s
        )
        self.all.append(made)
        return self.all[-1]

    def close(self) -> None:
        for sessions in self.all:
            sessions.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "data")
    yield opened
    opened.close()


def talked(question: str = "What is a lock?", answer: str = "A thing that locks.") -> Conversation:
    title = question.partition("\n")[0]
    talk = Conversation(title=title, system="be kind", sampling={"temperature": 0.5}, seed=7, max_tokens=99)
    asked = talk.add("user", question)
    reply = talk.add("assistant", answer, parent=asked.id, model="Big-7B")
    half = len(answer) // 2
    talk.change(
        replace(
            reply,
            reasoning="hm",
            finish="stop",
            runs=(("model", half), ("target", len(answer) - half)),
            figures={"tok_per_s": 12.5, "accepted": 3, "why": None},
            settings={"temperature": 0.5, "speculation": True},
        )
    )
    return talk


def titles(sessions: list[Listed]) -> list[str]:
    return [one.talk.title for one in sessions]


def until(true: Callable[[], object], seconds: float = SOON_S) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# ---- what is kept -----------------------------------------------------------------------------------------


def test_a_conversation_comes_back_whole_with_its_tree_settings_figures_and_origins(opened: Opened) -> None:
    talk = talked()
    talk.add("user", "What else?", parent=2)
    talk.add("assistant", "Another answer.", parent=1)
    talk.change(replace(talk.turns[4], finish="cancelled"))
    sessions = opened()
    sessions.save(talk)
    sessions.close()
    assert talk.id is not None
    assert opened().loaded(talk.id).result(SOON_S) == talk


def test_only_what_changed_is_written_again(opened: Opened) -> None:
    sessions, talk = opened(), talked()
    sessions.save(talk)
    sessions.searched().result(SOON_S)
    with closing(sqlite3.connect(opened.folder / "sessions.db")) as other:
        other.execute("UPDATE turns SET text = 'changed behind our back' WHERE id = 1")
        other.commit()
    talk.add("user", "More?", parent=2)
    sessions.save(talk)
    sessions.leave(talk)
    assert talk.id is not None
    found = sessions.loaded(talk.id).result(SOON_S)
    assert [turn.text for turn in found.path()] == ["changed behind our back", "A thing that locks.", "More?"]


def test_saving_comes_back_at_once_while_another_program_holds_the_file(opened: Opened) -> None:
    """Typing must not wait for a disk; what was handed over is written when the file is free again."""
    sessions, talk = opened(), talked()
    sessions.searched().result(SOON_S)
    with closing(sqlite3.connect(opened.folder / "sessions.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        for i in range(100):
            talk.change(replace(talk.turns[2], text=str(i)))
            sessions.save(talk)
        assert time.monotonic() - began < 5, "a file that is held is waited for that long at each"
        written = sessions.searched()
        time.sleep(0.4)
        assert not written.done()
        other.execute("COMMIT")
    written.result(SOON_S)
    assert titles(sessions.searched().result(SOON_S)) == ["What is a lock?"]
    assert talk.id is not None
    assert sessions.loaded(talk.id).result(SOON_S).turns[2].text == "99"


def test_what_could_not_be_written_for_long_is_reported_once_and_written_later(opened: Opened) -> None:
    opened.busy_s = 0.1
    sessions, talk = opened(), talked()
    sessions.searched().result(SOON_S)
    with closing(sqlite3.connect(opened.folder / "sessions.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        sessions.save(talk)
        until(lambda: opened.notices)
        talk.add("user", "meanwhile", parent=2)
        sessions.save(talk)
        time.sleep(0.5)
        other.execute("COMMIT")
    until(lambda: sessions.searched().result(SOON_S))
    sessions.close()
    assert len(opened.notices) == 2 and "database is locked" in opened.notices[0]
    assert "again" in opened.notices[1]
    assert talk.id is not None
    assert opened().loaded(talk.id).result(SOON_S) == talk


def test_of_chats_that_are_written_together_the_one_that_was_saved_last_is_the_newest(opened: Opened) -> None:
    sessions, talks = Sessions(opened.folder, on_notice=print), [talked(str(i)) for i in range(9)]
    opened.all.append(sessions)
    sessions.searched().result(SOON_S)
    with closing(sqlite3.connect(opened.folder / "sessions.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for talk in [*talks, talks[0]]:
            talk.add("user", "more", parent=talk.head)
            sessions.save(talk)
        other.execute("COMMIT")
    assert titles(sessions.searched().result(SOON_S)) == ["0", *map(str, range(8, 0, -1))]


def test_text_that_is_no_unicode_is_kept_as_far_as_it_is(opened: Opened) -> None:
    sessions, talk = opened(), talked("half a \ud800 character", "\0 and 漢字 🙂")
    talk.change(replace(talk.turns[2], model="of a server's \udfff"))
    sessions.save(talk)
    sessions.leave(talk)
    assert talk.id is not None
    found = sessions.loaded(talk.id).result(SOON_S)
    assert [turn.text for turn in found.path()] == ["half a ? character", "\0 and 漢字 🙂"]
    assert found.turns[2].model == "of a server's ?", "it ended the thread that writes"


def test_an_answer_is_kept_while_it_grows_and_a_kill_loses_less_than_a_second(opened: Opened) -> None:
    """kill -9 in the middle of an answer: what was said up to a second before is there, and searchable."""
    code = """
import sys, time
from dataclasses import replace
from pathlib import Path
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
sessions = Sessions(Path(sys.argv[1]), on_notice=print)
talk = Conversation(title="Count!")
talk.add("user", "Count!")
turn = talk.add("assistant", parent=1)
for i in range(100_000):
    turn = replace(turn, text=turn.text + f"{time.time():.3f} ")
    talk.change(turn)
    sessions.save(talk)
    if i == 100: print("running", flush=True)
    time.sleep(0.005)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(opened.folder)], stdout=subprocess.PIPE, env=with_paths()
    ) as process:
        assert process.stdout and process.stdout.readline() == b"running\n"
        time.sleep(0.6)
        process.kill()
        killed = time.time()
    sessions = opened()
    talk = sessions.newest().result(SOON_S)
    assert talk and not talk.read_only, "the lock died with its process"
    answer = talk.path()[-1]
    stamps = answer.text.split()
    assert killed - 1.0 < float(stamps[-1]) <= killed
    assert answer.finish == "cancelled", "nobody answers it any more"
    assert titles(sessions.searched(stamps[-1]).result(SOON_S)) == ["Count!"]
    assert opened.notices == []


def with_paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# ---- finding ----------------------------------------------------------------------------------------------


def kept(opened: Opened, *talks: Conversation) -> Sessions:
    sessions = opened()
    for talk in talks:
        opened.now += 60
        sessions.save(talk)
        sessions.searched().result(SOON_S)
    return sessions


def test_the_session_that_changed_last_is_the_first_of_the_list_and_the_newest(opened: Opened) -> None:
    first, second = talked("one?"), talked("two?\nand a second line")
    sessions = kept(opened, first, second)
    assert titles(sessions.searched().result(SOON_S)) == ["two?", "one?"]
    opened.now += 60
    first.title = "the first"
    sessions.save(first)
    assert titles(sessions.searched().result(SOON_S)) == ["the first", "two?"]
    newest = sessions.newest().result(SOON_S)
    assert newest and newest.id == first.id
    assert opened.now == sessions.searched().result(SOON_S)[0].changed


@pytest.mark.parametrize(
    "query, found",
    [
        ("mutex", ["Threads"]),
        ("MUTEX asyncio", ["Threads"]),
        ("mutex poem", []),
        ("hrea", ["Threads"]),
        ('"a mutex is"', ["Threads"]),
        ('"mutex a"', []),
        ("io", ["Threads"]),
        ("漢字", ["Write a poem"]),
        ("100%", ["Write a poem"]),
        ("1__%", []),
        ('say "', ["Write a poem"]),
        ("", ["Write a poem", "Threads"]),
        ("a OR b NOT *", []),
    ],
)
def test_search_finds_every_word_in_titles_and_turns(opened: Opened, query: str, found: list[str]) -> None:
    threads = talked("Explain asyncio", "A mutex is a lock, and asyncio has one.")
    threads.title = "Threads"
    sessions = kept(opened, threads, talked("Write a poem", "100% 漢字, say I"))
    assert titles(sessions.searched(query).result(SOON_S)) == found


def test_a_list_has_what_is_saved_of_a_chat_and_finds_what_is_still_being_written(opened: Opened) -> None:
    talk = talked()
    talk.add("assistant", "of an unfinished mutex", parent=1)
    talk.tools_off = {"notes", "time: now"}
    (found,) = kept(opened, talk).searched("unfinished").result(SOON_S)
    assert found.talk == replace(talk, system="", turns={}, head=None)
    assert (found.questions, found.model, found.beginning) == (1, "", "of an unfinished mutex")


def test_calls_and_their_results_are_found(opened: Opened) -> None:
    talk = talked()
    call = Call("1", "find", '{"what": "needle"}', server="files", tool="find", result="a haystack")
    talk.change(replace(talk.turns[2], settings=saved([call])))
    sessions = kept(opened, talk)
    for words in ("needle haystack", "files: find"):
        (found,) = sessions.searched(words).result(SOON_S)
        assert "find" in found.excerpt or "needle" in found.excerpt


def test_what_was_found_is_shown_in_its_surroundings(opened: Opened) -> None:
    answer = "word " * 50 + "the NEEDLE is here " + "word " * 50
    (found,) = kept(opened, talked("q", answer)).searched("needle").result(SOON_S)
    assert "the NEEDLE is here" in found.excerpt
    assert found.excerpt.startswith("…") and found.excerpt.endswith("…") and len(found.excerpt) < 120


def test_a_session_is_called_by_its_title_its_letters_or_a_part_of_its_title(opened: Opened) -> None:
    talks = [talked("Explain locks"), talked("Explain threads"), talked("locks")]
    sessions = kept(opened, *talks)

    def named(text: str) -> int | None:
        return sessions.named(text).result(SOON_S).id

    assert talks[0].id is not None
    assert named("LOCKS") == talks[2].id, "a whole title before a part"
    assert named(name_of(talks[0].id)[:8]) == talks[0].id
    assert named("threads") == talks[1].id
    with pytest.raises(SessionError, match="'explain' matches several chats: .*Explain threads"):
        named("explain")
    for text in ("nothing of the kind", "", "  "):
        with pytest.raises(SessionError, match="there is no chat"):
            named(text)


# ---- changing ---------------------------------------------------------------------------------------------


def test_a_deleted_session_can_be_brought_back_until_the_program_ends(opened: Opened) -> None:
    talk = talked()
    sessions = kept(opened, talk)
    assert talk.id is not None
    sessions.deleted(talk.id).result(SOON_S)
    assert sessions.searched().result(SOON_S) == []
    assert sessions.searched("lock").result(SOON_S) == []
    with pytest.raises(SessionError, match="there is no chat"):
        sessions.loaded(talk.id).result(SOON_S)
    assert sessions.undone().result(SOON_S) == talk.title
    assert titles(sessions.searched("lock").result(SOON_S)) == ["What is a lock?"]
    sessions.deleted(talk.id).result(SOON_S)
    sessions.close()
    again = opened()
    with pytest.raises(SessionError, match="nothing was deleted"):
        again.undone().result(SOON_S)
    assert again.searched().result(SOON_S) == []
    again.close()
    assert b"What is a lock" not in b"".join(path.read_bytes() for path in opened.folder.glob("sessions*"))


def test_what_was_deleted_comes_back_though_more_was_written_since(opened: Opened) -> None:
    """SQLite gives the numbers of deleted rows to the next ones."""
    stays, goes = talked("stays"), talked("goes")
    sessions = kept(opened, stays, goes)
    assert goes.id is not None
    sessions.deleted(goes.id).result(SOON_S)
    stays.add("user", "more", parent=2)
    sessions.save(stays)
    assert sessions.undone().result(SOON_S) == "goes"
    assert sessions.loaded(goes.id).result(SOON_S) == goes
    sessions.deleted(goes.id).result(SOON_S)
    goes.add("user", "an answer came late", parent=2)
    sessions.save(goes)
    assert sessions.undone().result(SOON_S) == "goes"
    sessions.close()
    assert opened().loaded(goes.id).result(SOON_S) == goes, "what is newer stays"
    assert opened().loaded(stays.id or 0).result(SOON_S) == stays and not opened.notices


def test_a_session_that_another_window_deleted_is_not_changed_again(opened: Opened) -> None:
    """An undo of that had nothing to bring back, and ended the app."""
    talk = talked()
    first = kept(opened, talk)
    first.leave(talk)
    second = opened()
    assert talk.id is not None
    first.deleted(talk.id).result(SOON_S)
    with pytest.raises(SessionError, match="deleted already"):
        second.deleted(talk.id).result(SOON_S)
    with pytest.raises(SessionError, match="deleted already"):
        second.renamed(talk.id, "another title").result(SOON_S)
    with pytest.raises(SessionError, match="nothing was deleted"):
        second.undone().result(SOON_S)
    assert not opened.notices


def test_a_session_can_be_renamed(opened: Opened) -> None:
    talk = talked()
    sessions = kept(opened, talk)
    assert talk.id is not None
    sessions.renamed(talk.id, " Locks,\n and more ").result(SOON_S)
    assert titles(sessions.searched("more").result(SOON_S)) == ["Locks, and more"]


# ---- two windows ------------------------------------------------------------------------------------------


def test_a_session_open_twice_is_read_only_in_the_second_window(opened: Opened) -> None:
    talk = talked()
    first, second = kept(opened, talk), opened()
    assert talk.id is not None
    copy = second.loaded(talk.id).result(SOON_S)
    assert copy.read_only and copy.path() == talk.path()
    copy.add("user", "not kept", parent=2)
    second.save(copy)
    for refused in (second.deleted(talk.id), second.renamed(talk.id, "mine")):
        with pytest.raises(SessionError, match="is open in another window"):
            refused.result(SOON_S)
    talk.add("user", "kept", parent=2)
    first.save(talk)
    first.leave(talk)
    first.searched().result(SOON_S)
    mine = second.loaded(talk.id).result(SOON_S)
    assert not mine.read_only and mine.path()[-1].text == "kept"
    assert first.loaded(talk.id).result(SOON_S).read_only


def test_an_answer_growing_in_another_window_is_not_called_cancelled(opened: Opened) -> None:
    talk = talked()
    talk.add("assistant", "still grow", parent=1)
    kept(opened, talk)
    assert talk.id is not None
    reader = opened()
    assert reader.loaded(talk.id).result(SOON_S).path()[-1].finish is None
    opened.all[0].leave(talk)  # as if it had ended there, unfinished
    opened.all[0].searched().result(SOON_S)
    assert reader.loaded(talk.id).result(SOON_S).path()[-1].finish == "cancelled"


def test_the_file_is_made_by_several_programs_at_once(tmp_path: Path) -> None:
    """One of two found it locked, or half made and took it for that of another program."""
    for i in range(25):
        path, together = tmp_path / f"{i}.db", Barrier(4)

        def open_it(path: Path = path, together: Barrier = together) -> None:
            together.wait(SOON_S)
            session_file.opened(path).close()

        with ThreadPoolExecutor(4) as programs:
            for opening in [programs.submit(open_it) for _ in range(4)]:
                opening.result(SOON_S)
        with closing(session_file.connected(path)) as made:
            assert made.execute("PRAGMA user_version").fetchone() == (session_file.FORMAT,)
            assert made.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_two_programs_write_sessions_at_once(opened: Opened) -> None:
    windows = [(opened(), talked(f"window {i}")) for i in range(3)]
    for _ in range(20):
        for sessions, talk in windows:
            talk.add("user", "more", parent=talk.head)
            sessions.save(talk)
            sessions.searched()
    for sessions, _ in windows:
        sessions.close()
    sessions = opened()
    found = sessions.searched().result(SOON_S)
    assert sorted(titles(found)) == ["window 0", "window 1", "window 2"]
    assert [len(sessions.loaded(session.id).result(SOON_S).turns) for session in found] == [22, 22, 22]
    assert opened.notices == []


def test_no_lock_is_left_behind(opened: Opened) -> None:
    kept(opened, talked(), talked()).close()
    assert list((opened.folder / "session-locks").iterdir()) == []


# ---- formats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil, expected",
    [
        ("PRAGMA user_version = 9", "was written by a newer EdgeSpec"),
        ("PRAGMA application_id = 5", "is a database of another program"),
    ],
)
def test_a_file_that_is_not_for_us_is_left_alone_and_the_chat_goes_on(
    opened: Opened, spoil: str, expected: str
) -> None:
    kept(opened, talked()).close()
    path = opened.folder / "sessions.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(spoil)
        connection.commit()
    before = path.read_bytes()
    sessions, talk = opened(), talked("in memory")
    sessions.save(talk)
    assert titles(sessions.searched().result(SOON_S)) == ["in memory"]
    assert talk.id is not None and sessions.loaded(talk.id).result(SOON_S) == talk
    assert sessions.close() == [talk]
    with pytest.raises(SessionError, match=expected):
        opened().newest().result(SOON_S)
    assert path.read_bytes() == before
    notice = opened.notices[0]
    assert expected in notice and str(path) in notice


def test_a_file_of_the_first_format_keeps_its_chats_and_loses_its_index(opened: Opened) -> None:
    talk = talked("The password is zyxwvutsrq")
    kept(opened, talk, talked("gone")).close()
    path = opened.folder / "sessions.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            "ALTER TABLE sessions ADD COLUMN deleted REAL;"
            "CREATE VIRTUAL TABLE words USING fts5(text, tokenize = 'trigram');"
            "CREATE TRIGGER words_go AFTER DELETE ON turns "
            "BEGIN DELETE FROM words WHERE rowid = old.row; END;"
            "INSERT INTO words (rowid, text) SELECT row, text FROM turns; PRAGMA user_version = 1;"
            "UPDATE sessions SET deleted = 9.0 WHERE title = 'gone'"
        )
    before = path.stat().st_size
    sessions = opened()
    assert titles(sessions.searched("zyxwv").result(SOON_S)) == [talk.title]
    assert titles(sessions.searched().result(SOON_S)) == [talk.title]
    assert talk.id is not None and sessions.loaded(talk.id).result(SOON_S) == talk
    sessions.leave(talk)
    with closing(session_file.connected(session_file.copy_of(path))) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (1,), "it was copied as it was"
    sessions.deleted(talk.id).result(SOON_S)
    assert sessions.undone().result(SOON_S) == talk.title
    sessions.deleted(talk.id).result(SOON_S)
    sessions.close()
    assert path.stat().st_size < before and not opened.notices
    left = b"".join(found.read_bytes() for found in opened.folder.glob("sessions*"))
    assert b"zyx" not in left and b"vuts" not in left


def test_a_file_that_is_mostly_empty_gives_its_room_back(opened: Opened) -> None:
    """A kill between the change of an old file and its shrinking left it five times as large for good."""
    talk = talked("The password is zyxwvutsrq")
    kept(opened, talk).close()
    path = opened.folder / "sessions.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript("CREATE TABLE words AS SELECT zeroblob(2000000); DROP TABLE words")
    before = path.stat().st_size
    sessions = opened()
    assert titles(sessions.searched("zyxwv").result(SOON_S)) == [talk.title]
    sessions.close()
    assert path.stat().st_size < before / 10


@posix
def test_nobody_else_can_read_the_file(opened: Opened) -> None:
    kept(opened, talked())
    for path in (opened.folder, *opened.folder.glob("sessions*")):
        assert path.stat().st_mode & 0o077 == 0, path


# ---- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["no database", "a hole"])
def test_a_damaged_file_is_set_aside_and_named_and_a_new_one_begun(opened: Opened, damage: str) -> None:
    kept(opened, *(talked("q" * 500) for _ in range(30))).close()
    path = opened.folder / "sessions.db"
    whole = path.read_bytes()
    spoilt = b"x" * len(whole) if damage == "no database" else whole[:5000] + b"\xff" * 20000 + whole[25000:]
    path.write_bytes(spoilt)
    sessions, talk = opened(), talked("new")
    sessions.save(talk)
    assert len(found := titles(sessions.searched().result(SOON_S))) == 31 and "new" in found
    (notice,) = opened.notices
    (aside,) = opened.folder.glob("sessions-damaged-*.db")
    assert str(aside) in notice and "damaged" in notice
    assert aside.read_bytes()[5000:25000] == spoilt[5000:25000]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sessions SET head = 99 WHERE id = ?",
        "UPDATE sessions SET settings = '{' WHERE id = ?",
        "UPDATE turns SET parent = 2 WHERE id = 2 AND session = ?",
        "UPDATE turns SET runs = '[[' WHERE id = 2 AND session = ?",
        "UPDATE turns SET figures = '7' WHERE id = 2 AND session = ?",
    ],
)
def test_damage_that_sqlite_does_not_see_costs_one_session(opened: Opened, damage: str) -> None:
    """A bit that flips within a text is no damage to SQLite: one such title hid all sessions, and one such
    figure, or a turn that answers itself, ended the chat that opened it."""
    talk = talked()
    kept(opened, talk, talked("another")).close()
    with closing(sqlite3.connect(opened.folder / "sessions.db")) as file:
        file.execute("UPDATE sessions SET title = CAST(x'41ff42' AS TEXT) WHERE id = ?", [talk.id])
        file.execute(damage, [talk.id])
        file.commit()
    sessions = opened()
    assert set(titles(sessions.searched().result(SOON_S))) == {"A\ufffdB", "another"}
    assert talk.id is not None
    with pytest.raises(SessionError, match=r"is damaged \(.*\): sessions-copy.db"):
        sessions.loaded(talk.id).result(SOON_S)
    assert sessions.named("another").result(SOON_S).turns and not opened.notices


def test_damage_found_while_the_program_runs_costs_nothing_of_the_open_conversation(opened: Opened) -> None:
    talk = talked()
    sessions = kept(opened, talk)
    with closing(sqlite3.connect(opened.folder / "sessions.db")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (opened.folder / "sessions.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40000)
    talk.add("user", "still there?", parent=2)
    sessions.save(talk)
    sessions.searched().result(SOON_S)
    sessions.close()
    assert "damaged" in opened.notices[0] and len(opened.notices) == 1
    assert talk.id is not None
    assert opened().loaded(talk.id).result(SOON_S) == talk


@posix
def test_a_full_disk_is_reported_once_and_the_chat_is_kept_when_there_is_room(opened: Opened) -> None:
    import resource

    small, big = talked("small"), talked("big", "word " * 100_000)
    sessions = kept(opened, small)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # files may not grow past that
    opened.now += 60
    try:
        sessions.save(big)
        assert titles(sessions.searched().result(SOON_S)) == ["big", "small"]
        assert len(opened.notices) == 1 and "cannot be written" in opened.notices[0]
        assert big.id is not None and small.id is not None
        assert sessions.loaded(big.id).result(SOON_S) == big
        sessions.renamed(small.id, "tiny").result(SOON_S)  # for which there is room
        with pytest.raises(SessionError, match="not saved yet"):
            sessions.deleted(big.id).result(SOON_S)
        time.sleep(0.2)
        assert len(opened.notices) == 1, "told once"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sessions.searched().result(SOON_S)
    assert "again" in opened.notices[1], "it was tried with the next question"
    sessions.close()
    assert titles(opened().searched().result(SOON_S)) == ["big", "tiny"]


def test_a_folder_that_cannot_be_made_is_reported_and_the_chat_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    opened = Opened(tmp_path / "data")
    sessions, talk = opened(), talked()
    sessions.save(talk)
    assert titles(sessions.searched().result(SOON_S)) == ["What is a lock?"]
    opened.close()
    (notice,) = opened.notices
    assert notice.startswith("chats are not saved for now: ")


@posix
def test_old_chats_are_there_where_the_disk_is_full_at_the_start(opened: Opened) -> None:
    """None was listed, for a reason that was none ("cannot rollback"); what was said was never saved."""
    opened.busy_s = 0.2
    old, new = talked("old one"), talked("new one")
    kept(opened, old).close()
    with no_room():
        sessions = opened()
        assert titles(sessions.searched("lock").result(SOON_S)) == ["old one"]
        assert old.id is not None
        assert sessions.loaded(old.id).result(SOON_S) == old
        sessions.save(new)
        sessions.searched().result(SOON_S)
        assert "rollback" not in opened.notices[0] and "as soon as" in opened.notices[0]
    assert sessions.close() == []
    assert "again" in opened.notices[-1]
    assert set(titles(opened().searched().result(SOON_S))) == {"new one", "old one"}


def test_a_file_that_another_program_holds_is_read_and_its_words_are_kept(opened: Opened) -> None:
    """The end waited ten seconds for a thread that waited longer, and gave back nothing: all was lost."""
    opened.busy_s = 0.2
    kept(opened, old := talked("old one")).close()
    with closing(sqlite3.connect(opened.folder / "sessions.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        sessions, new = opened(), talked("new one")
        assert old.id is not None
        assert sessions.loaded(old.id).result(SOON_S) == old
        assert opened.notices == [], "it is opened and read, whoever writes"
        sessions.save(new)
        old.add("user", "more", parent=2)
        sessions.save(old)
        assert {talk.id: talk for talk in sessions.close()} == {old.id: old, new.id: new}


def test_a_disk_that_does_not_answer_is_waited_for_no_longer_than_stated(opened: Opened) -> None:
    """Here its thread is held by a file that is written, and then by whoever is notified."""
    asked, answers = Event(), Event()

    def held(_: str) -> None:
        asked.set()
        answers.wait(SOON_S)

    kept(opened, talked("old one")).close()
    sessions, talk = Sessions(opened.folder, on_notice=held, busy_s=0.05), talked()
    with closing(sqlite3.connect(opened.folder / "sessions.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        sessions.save(talk)
        assert asked.wait(SOON_S)
        began = time.monotonic()
        assert sessions.close(timeout=0.1) == [talk]
        assert time.monotonic() - began < SOON_S / 2
        answers.set()
    sessions.close(timeout=SOON_S)


def test_a_copy_is_made_before_a_run_ends(opened: Opened) -> None:
    """kill -9 leaves no time for one."""
    kept(opened, talked("first"))
    with closing(session_file.connected(session_file.copy_of(opened.folder / "sessions.db"))) as copy:
        assert titles(listed.found(copy)) == ["first"]


def test_a_copy_that_a_kill_left_half_made_is_removed(opened: Opened) -> None:
    """It has chats that are deleted since."""
    opened.folder.mkdir(parents=True)
    half = opened.folder / "sessions-copy.db.999999999-0.part"
    half.write_text("half of it")
    kept(opened, talked())
    assert not half.exists() and session_file.copy_of(opened.folder / "sessions.db").exists()


def test_the_last_copy_takes_the_place_of_a_damaged_file(opened: Opened) -> None:
    """All of it was set aside, though one page of many was damaged."""
    talks = [talked(f"number {i} " + "q" * 3000) for i in range(20)]
    sessions = kept(opened, *talks)
    assert talks[3].id is not None
    sessions.deleted(talks[3].id).result(SOON_S)
    os.link(opened.folder / "sessions.db", opened.folder / "copy.db")
    with closing(sqlite3.connect(opened.folder / "sessions.db")) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray((opened.folder / "copy.db").read_bytes())
    sessions.close()
    at = content.find(b"number 11 ")
    content[at // 4096 * 4096 : at // 4096 * 4096 + 4096] = b"\xff" * 4096
    (opened.folder / "sessions.db").write_bytes(content)
    again = opened()
    found = {one.talk.title.split(" q")[0] for one in again.searched().result(SOON_S)}
    assert found == {f"number {i}" for i in range(20) if i != 3}, "and nothing that was deleted"
    talk = talks[7]
    assert talk.id is not None and again.loaded(talk.id).result(SOON_S) == talk
    assert titles(again.searched("number 7").result(SOON_S))
    (notice,) = opened.notices
    assert "its last copy, with 19 chats, takes its place" in notice


def test_a_chat_can_be_written_once_the_other_window_has_gone(opened: Opened) -> None:
    talk = talked()
    first = kept(opened, talk)
    second = opened()
    assert talk.id is not None
    assert second.loaded(talk.id).result(SOON_S).read_only
    talk.add("user", "more", parent=2)
    first.save(talk)
    first.close()
    found = second.loaded(talk.id).result(SOON_S)
    assert found == talk and not found.read_only


@posix
def test_a_program_that_is_reported_to_end_writes_what_is_left(opened: Opened) -> None:
    """Nobody called close: an exception ended the program before the batch was due."""
    code = """
import sys
from pathlib import Path
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
sessions = Sessions(Path(sys.argv[1]), on_notice=print)
talk = Conversation(title="Last words")
talk.add("user", "Last words")
sessions.save(talk)
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", code, str(opened.folder)], env=with_paths(), timeout=30)
    assert done.returncode == 3 != -signal.SIGSEGV
    assert titles(opened().searched().result(SOON_S)) == ["Last words"]


# --- what could not be kept


@posix
def test_what_a_full_disk_took_nothing_of_is_stated_at_the_end_and_written_elsewhere(
    opened: Opened, tmp_path: Path
) -> None:
    """Two of six turns were in the file, and nothing was shown at the end."""
    import resource

    small, big = talked("small"), talked("big", "word " * 100_000)
    sessions = kept(opened, small)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    lines: list[str] = []
    try:
        sessions.save(big)
        small.add("user", "one more", parent=small.head)
        sessions.save(small)
        sessions.searched().result(SOON_S)
        unwritten = sessions.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {talk.id: talk for talk in unwritten} == {small.id: small, big.id: big}
    rescue(unwritten, lines.append)
    assert "not saved" in lines[0] and "'big'" in lines[0] and "'small'" in lines[0]
    found = re.match("saved completely in (.*): move them", lines[1])
    assert found and sorted(os.listdir(found[1])) == ["big.json", "small.json"]
    written = json.loads(Path(found[1], "small.json").read_text())
    assert [turn["text"] for turn in written["turns"]] == [turn.text for turn in small.turns.values()]
    rescue(unwritten, lines.append, below=tmp_path / "gone")
    assert "no file takes them" in lines[3] and "one more" in lines[3], "the terminal is the last place"


def test_nothing_is_stated_where_all_is_kept_or_nothing_was_to_be(opened: Opened) -> None:
    assert kept(opened, talked()).close() == []
    alone = Sessions(None, on_notice=print)
    alone.save(talked())
    assert alone.close() == []
    rescue([], pytest.fail)


@pytest.mark.parametrize("windows", [1, 2])
def test_what_was_deleted_is_in_no_file_afterwards(tmp_path: Path, windows: int) -> None:
    """The full-text index kept its letters; and a second window keeps the log from being removed."""
    with ExitStack() as open_windows:
        sessions = open_windows.enter_context(closing(Sessions(tmp_path, on_notice=lambda _: None)))
        talk = Conversation()
        talk.add("user", "The password is zyxwvutsrq.")
        sessions.save(talk)
        other = Conversation()
        other.add("user", "This stays: abcdefgh.")
        sessions.save(other)
        assert talk.id is not None
        sessions.leave(talk)
        assert sessions.searched("zyxwv").result(SOON_S)  # it is written
        for _ in range(windows - 1):
            second = open_windows.enter_context(closing(Sessions(tmp_path, on_notice=lambda _: None)))
            assert second.searched("zyxwv").result(SOON_S)
        sessions.deleted(talk.id).result(SOON_S)
        sessions.close()
        left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"This stays" in left
    assert not any(part in left.lower() for part in (b"zyxwv", b"zyx", b"vuts"))


def test_the_list_of_chats_is_left_while_its_file_is_not_read_yet() -> None:
    """A large file of an earlier version is changed first, for seconds; keys waited for that."""
    readable = Event()

    async def leave() -> None:
        with closing(Sessions(None, on_notice=lambda _: None, clock=slow)) as sessions:
            sessions.save(talked())  # its writing asks for the time
            app: App[None] = App()
            async with app.run_test():
                screen = SessionsScreen(sessions, Conversation(), lambda: None)
                app.push_screen(screen)
                try:
                    async with asyncio.timeout(SOON_S / 2):
                        while not (app.screen is screen and screen.is_running):
                            await asyncio.sleep(0.01)
                        app.simulate_key("escape")
                        while app.screen is screen:
                            await asyncio.sleep(0.01)
                finally:
                    readable.set()

    def slow() -> float:
        readable.wait(2 * SOON_S)
        return 0.0

    asyncio.run(leave())
