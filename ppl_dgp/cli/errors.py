"""Errors of the command line."""


class BadInput(ValueError):
    """The command cannot be carried out as given. The message is one line: the cause, then the remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")


class Stopped(Exception):
    """Ctrl-C came; the message says what was kept and how to go on.

    No KeyboardInterrupt: that one never reaches the entry point, typer makes an exit code of it.
    """
