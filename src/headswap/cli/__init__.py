"""The command line. Each command is a few lines over the Python interface.

Nothing heavy is imported here: ``headswap --help`` answers without torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, UnusedCliTokensError

from headswap.cli import (
    experiment,
    exporting,
    looking,
    planning,
    serving,
    sharding,
    training,
    using,
)
from headswap.errors import (
    Elsewhere,
    HeadswapError,
    Interrupted,
    ResourceError,
    StorageError,
    UsageError,
)
from headswap.version import __version__

app = App(
    name="headswap",
    help=(
        "Pretrain a small Transformer on your own text, swap its head, fine-tune it on a few "
        "labels, and learn what pretraining bought you.\n\n"
        "The whole experiment:\n\n"
        "    headswap transfer reviews.csv --text corpus.txt\n\n"
        "Step by step:\n\n"
        "    headswap train causal corpus.txt --out runs/base\n\n"
        "    headswap train classify reviews.csv --from runs/base --out runs/reviews\n\n"
        "    headswap predict runs/reviews new.txt"
    ),
    version=__version__,
    version_flags=["--version"],
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
for command in (
    experiment.transfer,
    experiment.report,
    training.train,
    training.resume,
    using.predict,
    using.evaluate,
    using.generate,
    using.translate,
    using.fill,
    using.embed,
    looking.check,
    sharding.shards,
    looking.compare,
    looking.inspect,
    planning.plan,
    exporting.export,
    serving.serve,
    looking.recipes,
    looking.demo,
):
    app.command(command)

UNREAD = 141
"""The exit code of a program whose output nobody reads any more (128 + SIGPIPE)."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every expected failure is one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know every sign
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(arguments)
    except CycloptsError as error:
        if os.environ.get("RANK", "0") != "0":  # of several processes one speaks
            sys.exit(UsageError.exit_code)
        _fail(_reworded(error))
    except Elsewhere as error:
        sys.exit(error.exit_code)
    except HeadswapError as error:
        _fail(error)
    except KeyboardInterrupt:
        _fail(Interrupted("interrupted"))
    except BrokenPipeError:  # as in `headswap predict … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(UNREAD)
    except OSError as error:
        _fail(StorageError(error.strerror or str(error), where=error.filename))
    except MemoryError:
        _fail(ResourceError("out of memory", fix="use a smaller batch or model"))
    except Exception as error:
        if isinstance(error, RuntimeError) and "allocate memory" in str(error):  # torch's own
            _fail(ResourceError("out of memory", fix="ask for less at a time"))
        traceback.print_exc()
        _fail(HeadswapError("this is a bug in Headswap", fix="please report the lines above"))


def _reworded(error: CycloptsError) -> UsageError:
    """The library's words, where they say what to do."""
    if isinstance(error, UnusedCliTokensError):
        rest = " ".join(error.unused_tokens or ())
        return UsageError(f"{rest!r} is more than the command takes", fix="see its --help")
    return UsageError(str(error))


def _run(arguments: Sequence[str] | None) -> None:
    """Run a command; what it printed is written out while a failure can still be told."""
    try:
        app(_words(arguments), exit_on_error=False, print_error=False)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich has turned it into an exit
            raise stop.__context__ from None
        _flush()
        raise
    _flush()


def _words(arguments: Sequence[str] | None) -> list[str]:
    """The words of a command; a lone - goes to the end, where it is a name and no option."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    after = words.index("-") - 1 if words[1:].count("-") == 1 else 0
    if after > 0 and not words[after].startswith("--") and "--" not in words:
        words.remove("-")
        words += ["--", "-"]
    return words


def _flush() -> None:
    if sys.stdout is not None:  # it is None where the caller has closed it
        sys.stdout.flush()


def _fail(error: HeadswapError) -> NoReturn:
    with contextlib.suppress(BrokenPipeError):
        print(f"headswap: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
