"""The terminal's driver: Textual's, but for reading, which nothing that is typed may end."""

import os
import selectors
import signal
import time

from textual.drivers.linux_driver import LinuxDriver

from edgespec_tui.terminal.typed_bytes import TypedBytes

LOOK_S, SOON_S = 0.1, 0.01


class TerminalDriver(LinuxDriver):
    """Reads keys and pastes."""

    def run_input_thread(self) -> None:
        """Reads until the app ends, and then to the end of a paste: the shell would run the rest.

        A terminal that is gone ends the app.
        """
        typed = TypedBytes(time.monotonic)
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set() or typed.pasting:
                if selector.select(SOON_S if typed.ended else LOOK_S):
                    try:
                        data = os.read(self.fileno, 2**16)
                    except OSError:
                        data = b""
                    if not data:
                        os.kill(os.getpid(), signal.SIGHUP)
                        return
                    messages = typed.feed(data)
                else:
                    messages = typed.quiet()
                for message in messages:
                    self.process_message(message)
