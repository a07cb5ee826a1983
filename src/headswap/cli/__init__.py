"""The command line. Each command is a few lines over the Python interface.

Nothing heavy is imported here: ``headswap --help`` answers without torch.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every expected failure is one line and an exit code."""
    try:
        app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        if os.environ.get("RANK", "0") != "0":  # of several processes one speaks
            sys.exit(UsageError.exit_code)
        _fail(UsageError(str(error)))
    except Elsewhere as error:
        sys.exit(error.exit_code)
    except HeadswapError as error:
        _fail(error)
    except KeyboardInterrupt:
        _fail(Interrupted("interrupted"))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(StorageError(error.strerror or str(error), where=error.filename))
    except MemoryError:
        _fail(ResourceError("out of memory", fix="use a smaller batch or model"))
    except Exception:
        traceback.print_exc()
        _fail(HeadswapError("this is a bug in Headswap", fix="please report the lines above"))


def _fail(error: HeadswapError) -> NoReturn:
    print(f"headswap: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
