"""What runs next to the answers, one at a time: a command of the user's, a summary, a server's prompt."""

from collections.abc import Callable, Coroutine

from textual.screen import Screen
from textual.worker import Worker

from edgespec.errors import EdgeSpecError, SettingError
from edgespec_tui.tools.markers import as_data
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.notice_line import Kind
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import Insert, QuestionText, count_of
from edgespec_tui.widgets.shell_output import ShellOutput


class SideWork:
    """Owns what is being done. tell: shows what went wrong."""

    def __init__(self, screen: Screen[None], prompt: PromptInput, tell: Callable[[str, Kind], None]) -> None:
        self._screen, self._prompt, self._tell = screen, prompt, tell
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
        self._worker = self._screen.run_worker(self._reported(work), group="aside", exit_on_error=False)

    async def _reported(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except EdgeSpecError as error:
            self._tell(str(error), "error")

    def _put(self, question: QuestionText) -> None:
        self._prompt.put_before(question)
        self._prompt.focus()

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
