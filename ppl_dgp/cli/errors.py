"""What the command line says when it cannot go on."""


class BadInput(ValueError):
    """The command cannot be carried out as given. The message is one line: the cause, then the remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
