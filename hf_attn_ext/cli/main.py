"""``hf-attn-ext``: the commands put together, and the one place where errors become a line and an exit code.

Exit codes: 0 done; 2 the user's mistake (one line on stderr, no traceback); 130 interrupted; 1 our mistake (with a
traceback). torch and transformers are imported by the commands that need them, not by ``--help``.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from hf_attn_ext._version import __version__
from hf_attn_ext.errors import AttnExtError

from .commands import bench, build, card, convert, distill, doctor, evaluate, list_names, lm_eval, mask, probe, push
from .start import execute_package

USER_MISTAKE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="hf-attn-ext",
    help="Linear attention and masks for Hugging Face models: convert, distil, evaluate, describe and upload.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _add(name: str, command: Callable[..., None], to: typer.Typer = app, execute: bool = True, **options: Any) -> None:
    """Add a command; ``execute`` imports the whole package, with torch and transformers, before it runs."""

    @functools.wraps(command)
    def run(*arguments: Any, **chosen: Any) -> None:
        if execute:
            execute_package()
        command(*arguments, **chosen)

    to.command(name, **options)(run)


_add("convert", convert.convert)
_add("distill", distill.distill)
_add("evaluate", evaluate.evaluate)
_add("lm-eval", lm_eval.lm_eval, context_settings=lm_eval.PASS_ON)
_add("probe", probe.probe)
_add("card", card.card)
_add("push", push.push)
_add("build", build.build)
_add("list", list_names.list_names, execute=False)
_add("doctor", doctor.doctor)

_add("bench", bench.bench, context_settings=bench.PASS_ON)

masks = typer.Typer(help="Masks: look at one, at the order behind it, derive one from tasks.", rich_markup_mode=None)
masks.add_typer(mask.show, name="show")
_add("analyze", mask.analyze, masks)
_add("derive", mask.derive, masks)
app.add_typer(masks, name="mask")

# typer has carried its own copy of click since 0.25; the base class is found from a name that both have. The type says
# BadParameter, as the base class has no name of its own in typer; both have format_message.
_UsageProblem = cast(
    "type[typer.BadParameter]", next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="Import a module of yours that registers kernels, masks or statistics."
        ),
    ] = None,
) -> None:
    for name in modules or ():
        execute_package()
        _import_module(name)
    if version:
        typer.echo(f"hf-attn-ext {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _import_module(name: str) -> None:
    """Import a user's module, also from the working folder, so that what it registers is known to the command.

    ``hf-attn-ext --import my_module COMMAND ...`` is the one way to bring kernels, masks and statistics to a command.
    """
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise AttnExtError(f"--import: {name!r} cannot be imported: {error}") from error
    finally:
        sys.path.remove(folder)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the words after the program's name; None takes ``sys.argv``.

    Example:
        >>> main(["convert", "no-such-folder", "--out", "x"])  # doctest: +SKIP
        2
    """
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="hf-attn-ext", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except AttnExtError as error:
        return _fail(str(error))
    except _UsageProblem as error:
        words = sys.argv[1:] if arguments is None else arguments
        return _fail(f"{error.format_message().rstrip('.')}{_bad_value(error, words)} (see hf-attn-ext --help)")
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone: nothing more to say, also not while exiting.
        sys.stdout = None
        return 0
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _bad_value(error: typer.BadParameter, words: list[str]) -> str:
    """The value of the option that a usage error complains about, for messages that leave it out."""
    options = [name for name in getattr(getattr(error, "param", None), "opts", ()) if name.startswith("-")]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in options:
            value = value if equals else following
            return "" if repr(value) in error.format_message() else f", got {value!r}"
    return ""


def _fail(message: str) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return USER_MISTAKE
