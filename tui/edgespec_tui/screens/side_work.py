"""What runs next to the answers, one at a time: a command of the user's, a summary, a server's prompt."""

from collections.abc import Callable, Coroutine

from textual.worker import Worker

from edgespec.errors import EdgeSpecError, SettingError
from edgespec_tui.tools.markers import as_data
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.question import Insert, QuestionText, count_of
from edgespec_tui.widgets.shell_output import ShellOutput

Start = Callable[[Coroutine[None, None, None]], Worker[None]]
Put = Callable[[QuestionText], None]


class SideWork:
    """Owns what is being done. start: begins work. put: puts a text before what is written."""

    def __init__(self, start: Start, put: Put, tell: Callable[[str], None]) -> None:
        self._start, self._put, self._tell = start, put, tell
        self._worker: Worker[None] | None = None

    @property
    def running(self) -> bool:
        return self._worker is not None and self._worker.is_running

    def stop(self) -> None:
        """Stops it."""
        if self._worker is not None:
            self._worker.cancel()

    def begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begins something. Raises SettingError while something else is being done."""
        if self.running:
            raise SettingError("a command or a summary is still running: Esc stops it")
        self._worker = self._start(self._reported(work))

    async def _reported(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except EdgeSpecError as error:
            self._tell(str(error))

    async def shell(self, command: str, output: ShellOutput) -> None:
        """Runs a command of the user's own; its output goes into the input."""
        try:
            self._put((await output.run(command)).question())
        except (OSError, ValueError) as error:  # no shell, a zero byte
            self._put(QuestionText(f"!{command}"))
            raise SettingError(f"{command} was not started: {error}") from None

    async def prompt(self, toolbox: Toolbox, line: str) -> None:
        """Puts a prompt of a server into the input: SERVER:NAME ARGUMENT=VALUE ..."""
        words = line.split()
        known = [] if words else await toolbox.prompts()
        if not words:
            names = [
                f"{server}:{name} {' '.join(f'{one}=' for one in needs)}" for server, name, needs in known
            ]
            there = ", ".join(map(str.strip, names)) or "none: no server has any"
            raise SettingError(f"/prompt takes SERVER:NAME ARGUMENT=VALUE ...; there is {there}")
        server, _, name = words[0].partition(":")
        given = dict(word.partition("=")[::2] for word in words[1:])
        text = as_data(await toolbox.prompt(server, name, given))
        self._put(QuestionText(text, (Insert(0, len(text), f"[{words[0]}: {count_of(text)}]"),)))
