"""The lines of a plain chat: questions, and commands that begin with a slash."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError, EngineDiedError, SettingError
from edgespec_tui.plain.plain import PlainChat
from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.sessions.export import export, title_of
from edgespec_tui.sessions.listed import Listed, short_name_of
from edgespec_tui.settings import slash_commands
from edgespec_tui.settings.slash_commands import CHANGES, on_or_off
from edgespec_tui.terminal.typed_bytes import without_controls
from edgespec_tui.widgets.attached_files import NAMED, read_file, with_files
from edgespec_tui.widgets.question import QuestionText

with contextlib.suppress(ImportError):  # not on Windows
    import readline  # noqa: F401  (input() then has a history and line editing)

HELP = "/clear starts a new chat, /help lists the commands, Ctrl+C stops an answer, Ctrl+D quits."
SHARED = (*CHANGES, "/continue", "/export", "/read", "/speculation")  # with the screen
COMMANDS = {
    **{f"{one.name} {one.wants}".rstrip(): one.does for one in slash_commands.COMMANDS if one.name in SHARED},
    "/clear": "start a new chat (also /new)",
    "/again": "answer the last question again",
    "/back": "take back the last question and its answer",
    "/sessions [WORDS]": "list all chats, or those that contain these words",
    "/open NAME": "continue a chat from the list",
    "/delete NAME": "delete a chat from the list; /undelete restores the last one",
    "/exit": "quit (also /quit, /bye)",
}
ENDS = ("/exit", "/quit", "/bye")
SHOWN = 30  # sessions of a list


class PlainLines:
    """Reads lines until they end. talking: somebody sits at a keyboard."""

    def __init__(
        self, chat: PlainChat, new_conversation: Callable[[], Conversation], *, talking: bool
    ) -> None:
        self._chat, self._new, self._talking = chat, new_conversation, talking
        self._read: list[str] = []  # what /read has put before the next question

    def talk(self) -> int:
        """Answers line after line; returns the exit code."""
        while (line := self._next_line()) is not None:
            if line.strip() in ENDS:
                break
            try:
                self._take(line)
            except EdgeSpecError as error:  # the conversation continues without that question
                self._chat.tell(f"edgespec: {error}")
        return 0

    def _next_line(self) -> str | None:
        """Returns the next line; None at the end of the input."""
        try:
            if not self._talking:
                line = sys.stdin.readline()
            elif "readline" in sys.modules and sys.stdout.isatty():
                line = input("> ") + "\n"
            else:
                print("> ", end="", file=sys.stderr, flush=True)
                line = sys.stdin.readline()
        except KeyboardInterrupt:  # as in a shell: the line is dropped, the conversation stays
            if not self._talking:
                raise
            self._chat.tell("\n(Ctrl+D quits)")
            return ""
        except EOFError:
            line = ""
        if not line and self._talking:
            self._chat.tell("")
        return line.rstrip("\r\n") if line else None

    def _take(self, line: str) -> None:
        if line.startswith("/") and "/" not in line.split(maxsplit=1)[0][1:]:
            name, _, rest = line.strip().partition(" ")
            self._command(name, rest.strip())
        elif line.strip():
            read, self._read = self._read, []
            try:
                question = self._with_files(line, read)
                text = "\n".join([*(one for one in read if not one.startswith(NAMED)), question.text])
                self._chat.ask(text, title=line, media=question.media)
            except EdgeSpecError as error:
                if _may_help_to_ask_again(error):
                    self._read = read
                elif read:
                    self._chat.tell("(the text added by /read is dropped)")
                raise

    def _with_files(self, line: str, read: Sequence[str]) -> QuestionText:
        """Returns a question with the files that it names with an @, if somebody sits at a keyboard.

        Text from a pipe is not read so: its writer may not be allowed to read the files. read: what /read
        has put before it; of pictures, the names.
        """
        pictures = " ".join(one for one in read if one.startswith(NAMED))
        if not self._talking:
            return replace(with_files(QuestionText(pictures))[0], text=line, inserts=())
        question, notes = with_files(QuestionText(f"{pictures} {line}".lstrip()))
        for sentence in notes:
            self._chat.tell(f"({sentence[:1].lower()}{sentence[1:].removesuffix('.')})")
        return question

    def _command(self, name: str, rest: str) -> None:
        chat = self._chat
        does: dict[str, Callable[[], object]] = {
            "/help": lambda: chat.tell("\n".join(f"{usage}: {what}" for usage, what in COMMANDS.items())),
            "/clear": self._clear,
            "/new": self._clear,
            "/again": lambda: chat.answer_to(self._question()),
            "/continue": self._go_on,
            "/back": self._back,
            "/read": lambda: self._read_file(rest),
            "/speculation": lambda: self._speculation(rest),
            "/sessions": lambda: chat.tell(listing(chat.sessions.searched(rest, limit=SHOWN).result())),
            "/open": lambda: self._open(rest),
            "/delete": lambda: self._delete(rest),
            "/undelete": lambda: chat.tell(f"Restored {chat.sessions.undone().result()!r}."),
            "/export": lambda: chat.tell(f"Written: {export(chat.conversation, rest, folder=Path())}"),
        }
        if name in CHANGES:
            chat.tell(CHANGES[name](chat.conversation, rest))
            self._chat.sessions.save(self._chat.conversation)
        elif name in does:
            does[name]()
        else:
            chat.tell(f"{name} is not a command. {HELP}")

    def _clear(self) -> None:
        self._chat.sessions.leave(self._chat.conversation)
        self._chat.conversation = self._new()
        self._chat.tell("New chat.")

    def _question(self) -> Turn:
        path = self._chat.conversation.path()
        question = next((turn for turn in reversed(path) if turn.role == "user"), None)
        if question is None:
            raise SettingError("there is no question yet: ask one first")
        return question

    def _go_on(self) -> None:
        path = self._chat.conversation.path()
        if not path or path[-1].role != "assistant" or not path[-1].text:
            raise SettingError("there is no answer to continue: ask something first")
        question = path[-1].parent
        assert question is not None
        self._chat.answer_to(self._chat.conversation.turns[question], path[-1])

    def _back(self) -> None:
        talk = self._chat.conversation
        talk.head = self._question().parent
        self._chat.sessions.save(talk)
        self._chat.tell("Taken back; it is still in the saved chat.")

    def _read_file(self, name: str) -> None:
        text = read_file(name)
        self._read.append(text)
        picture = text.startswith(NAMED)
        what = f"{name} will go with" if picture else f"{len(text):,} characters will go before"
        self._chat.tell(f"{what} the next question.")

    def _speculation(self, text: str) -> None:
        self._chat.options = replace(self._chat.options, speculation=on_or_off(text))
        self._chat.tell(f"Speculation is {text}.")

    # -- sessions

    def _named(self, command: str, name: str) -> Conversation:
        if not name:
            raise SettingError(f"{command} needs the name of a chat: /sessions lists them")
        return self._chat.sessions.named(name).result()

    def _open(self, name: str) -> None:
        found = self._named("/open", name)
        if found.read_only:
            raise SettingError(f"{title_of(found)!r} is open in another window: close it there first")
        if found.id != self._chat.conversation.id:
            self._chat.sessions.leave(self._chat.conversation)
            self._chat.conversation = found
        self._chat.tell(resumed(found))

    def _delete(self, name: str) -> None:
        found = self._named("/delete", name)
        if found.id == self._chat.conversation.id:
            raise SettingError("this chat is open: start a new one with /clear, then delete it")
        assert found.id is not None
        self._chat.sessions.leave(found)
        self._chat.sessions.deleted(found.id).result()
        self._chat.tell(f"Deleted {title_of(found)!r}; /undelete restores it until you quit.")


def resumed(conversation: Conversation) -> str:
    """Says where a chat continues."""
    n = len(conversation.path())
    last = next((turn.text for turn in reversed(conversation.path()) if turn.text), "")
    end = " ".join(last.split())[-100:]
    return f"Continuing {title_of(conversation)!r}, {n} messages. The last one ended: {end}"


def listing(sessions: list[Listed], *, now: float | None = None) -> str:
    """Returns sessions, one a line: name, age, title, and where it was found."""
    now = time.time() if now is None else now
    lines = []
    for one in sessions:
        text = without_controls(" | ".join(filter(None, [one.heading, one.excerpt])))
        lines.append(f"{short_name_of(one.id)}  {one.age(now):>10}  {text}")
    return "\n".join(lines) or "No chats found."


def _may_help_to_ask_again(error: EdgeSpecError) -> bool:
    """True if the engine is to blame, and comes back."""
    comes_back = isinstance(error, EndpointError) and error.retry_s is not None
    return comes_back or isinstance(error, EngineDiedError | EndpointLostError)
