"""Starts ``hf-attn-ext`` without waiting for torch: help and usage errors need only the commands' signatures.

Importing ``hf_attn_ext`` imports torch and transformers and registers everything, which takes seconds. The console
script therefore enters the package unexecuted, imports the command line from it, and leaves the package's own
``__init__`` to :func:`hf_attn_ext.cli.main.main`, which executes it before the first command runs.
"""

import importlib.util
import signal
import sys
import threading

PACKAGE = "hf_attn_ext"


def run() -> None:
    """The console script's entry point; Ctrl-C is quiet from the first moment on."""
    interrupted = False

    def interrupt(number, frame):
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)
    try:
        if PACKAGE not in sys.modules:
            spec = importlib.util.find_spec(PACKAGE)
            sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        from hf_attn_ext.cli.main import main

        code = main()
    except BaseException:
        # an interruption inside an import may come out as an error of that import
        if not interrupted:
            raise
        code = 130
    sys.exit(code)
