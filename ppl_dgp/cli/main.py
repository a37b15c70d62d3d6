"""The entry point: every way out is an exit code, every error one line on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ppl_dgp.cli.errors import BadInput, Stopped, refused
from ppl_dgp.extras import MissingExtra, missing_extra, needed_for

with needed_for("the command line"):
    import typer

INTERRUPTED = 130
# typer's own usage errors, whichever copy of click it is built on
_USAGE: tuple[type[BaseException], ...] = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ in ("UsageError", "ClickException")
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ppl-dgp`` with ``argv`` (default: the process's own). Returns 0, 2 for bad input, 130 if interrupted."""
    from ppl_dgp.cli.app import app

    try:
        code = app(args=None if argv is None else list(argv), prog_name="ppl-dgp", standalone_mode=False)
        if code == INTERRUPTED:
            print("ppl-dgp: interrupted; nothing was written", file=sys.stderr)
        return int(code or 0)
    except Stopped as interrupt:
        print(f"ppl-dgp: {interrupt}", file=sys.stderr)
        return INTERRUPTED
    except _USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which has printed it
            return 0
        name = getattr(getattr(error, "ctx", None), "command_path", None) or "ppl-dgp"
        return refused(f"{_usage(error)}; see '{name} --help'")
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("ppl-dgp: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of standard output has gone: no more to say, and nothing to flush at exit
        sys.stdout = open(os.devnull, "w")
        return 0
    except OSError as error:
        where = f" {str(error.filename)!r}" if error.filename else ""
        return refused(
            f"cannot read or write{where} ({error.strerror or error}); check the path and its rights"
        )
    except ModuleNotFoundError as error:
        missing = missing_extra(error, "this command")
        if missing is None:
            raise
        return refused(str(missing))
    except Exception as error:
        if not _is_user_error(error):
            raise
        return refused(str(error))


def _usage(error: BaseException) -> str:
    """What typer says of an option or a command that is none; of one that is nearly one, which it may be."""
    message: str = error.format_message().strip().rstrip(".")  # type: ignore[attr-defined]
    near = getattr(error, "possibilities", None)
    if getattr(error, "option_name", None) is None or not near:
        return message
    return f"No such option: {error.option_name}. Did you mean {' or '.join(sorted(near))}?"  # type: ignore[attr-defined]


def _is_user_error(error: Exception) -> bool:
    """Whether the error is of the kinds whose messages are written for the user."""
    from ppl_dgp.checkpoint import CheckpointError
    from ppl_dgp.data import DataError
    from ppl_dgp.fit import FitError

    return isinstance(error, (BadInput, CheckpointError, DataError, FitError, MissingExtra))
