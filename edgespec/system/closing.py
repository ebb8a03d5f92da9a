"""What is closed at the end of a `with`."""

from typing import Self


class Closing:
    """Can be used in a `with`, which closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees what it has."""
        raise NotImplementedError
