"""The Typer application, how records are printed, and how errors reach the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from labkit.errors import LabError
from labkit.records import Record

app = typer.Typer(
    help="Fine-tune, compress, convert and serve large language models on TPUs, and know beforehand.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]

_INTERRUPTED = 130
# Typer's releases differ in where they keep Click, so its base of all wrong calls is taken from a public subclass.
_WrongCall: Any = typer.BadParameter.__mro__[2]


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command of its name; the example is shown by `--help`."""
    return app.command(epilog=f"Example: {example}")


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        import labkit

        print(labkit.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


def show(call: Callable[[], Record], as_json: bool) -> None:
    """Make a record and print it. What the libraries print meanwhile goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        record = call()
    if as_json:
        print(record.to_json())
        return
    from rich.console import Console

    table = hasattr(record, "__rich__")
    Console(soft_wrap=not table, highlight=False, markup=False).print(record if table else str(record))


def start(devices: int | None = None) -> None:
    """Set up JAX for a command that computes: it stays off a TPU that another process holds."""
    import labkit

    with contextlib.redirect_stdout(sys.stderr):
        labkit.start(devices=devices)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. An error is one line on stderr, without a traceback."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        result = typer.main.get_command(app).main(args=words, prog_name="labkit", standalone_mode=False)
    except LabError as error:
        return _fail(as_json, 1, error.what, error.hint)
    except _WrongCall as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context else "labkit"
        return _fail(as_json, 2, error.format_message(), f"See {name} --help.")
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return 1
    except OSError as error:
        return _fail(as_json, 1, f"{error.strerror or error}: {error.filename or 'no file named'}.", "")
    if result == _INTERRUPTED:
        return _fail(as_json, _INTERRUPTED, "Interrupted.", "The same command again goes on where it can.")
    return result if isinstance(result, int) else 0


def _fail(as_json: bool, code: int, what: str, hint: str) -> int:
    line = " ".join(f"error: {what} {hint}".split())
    print(line, file=sys.stderr)
    if as_json:
        print(json.dumps({"error": what, "hint": hint}))
    return code
