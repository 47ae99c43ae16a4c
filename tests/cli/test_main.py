"""The command line as a whole: help, versions, usage errors, interruption, quickness."""

import os
import signal
import subprocess
import sys
import time

import pytest

import hf_attn_ext as hax
from hf_attn_ext.cli import main
from hf_attn_ext.cli.commands import list_names
from hf_attn_ext.probe.statistics import list_statistics

COMMANDS = ("convert", "distill", "evaluate", "lm-eval", "probe", "card", "push", "build", "list", "doctor")


def program(*words: str, **options) -> subprocess.CompletedProcess:
    code = "from hf_attn_ext_launcher import run; run()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, **options)


def test_help_lists_the_commands(run):
    for words in ([], ["--help"]):
        done = run(*words)
        assert done.code == 0 and done.err == ""
        for command in COMMANDS:
            assert f"  {command} " in done.out


def test_version(run):
    assert run("--version").out.strip() == f"hf-attn-ext {hax.__version__}"


@pytest.mark.parametrize(
    "command", ["convert", "distill", "evaluate", "lm-eval", "probe", "card", "push", "build", "list", "doctor"]
)
def test_every_command_has_help(run, command):
    done = run(command, "--help")
    assert done.code == 0 and "Usage: hf-attn-ext " + command in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["covert"], ["'covert'", "'convert'"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["push"], ["folder"]),
        (["push", "a", "b", "c"], ["c"]),
        (["list", "kernel"], ["'kernel'", "'kernels'"]),
    ],
)
def test_usage_errors_are_one_line(run, words, said):
    message = run(*words).mistake()
    for part in said:
        assert part in message


def test_list_names_kernels_and_model_types(run):
    assert {"flexformer_p", "hedgehog", "performer"} <= set(run("list", "kernels").out.split())
    assert {"bert", "roberta"} <= set(run("list", "models").out.split())
    both = run("list").out
    assert "kernels:" in both and "models:" in both and "flexformer_p" in both and "roberta" in both


def test_an_interruption_is_quiet(run, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(list_names, "_print", interrupted)
    done = run("list")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_our_own_mistakes_are_not_dressed_up_as_the_users(monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(list_names, "_print", broken)
    with pytest.raises(ZeroDivisionError):
        main.main(["list"])


def test_help_and_usage_errors_do_not_wait_for_torch():
    code = (
        "import sys; from hf_attn_ext_launcher import run\n"
        "try: run()\n"
        "except SystemExit as exit: print(exit.code, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    for words, exit_code in (
        (["--help"], 0),
        (["convert", "--help"], 0),
        (["lm-eval", "--help"], 0),
        (["convert"], 2),
        (["covert"], 2),
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1] == f"{exit_code} False False", done.stderr


@pytest.mark.parametrize("delay", [0.05, 1.0])
def test_ctrl_c_while_importing_or_working_is_quiet(delay):
    code = "from hf_attn_ext_launcher import run; print('started', flush=True); run()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "started\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_the_program_itself_exits_with_the_code_and_one_line():
    done = program("convert", "./no-such-folder", "--out", "x")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ") and "'./no-such-folder'" in done.stderr


def test_output_into_a_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "from hf_attn_ext_launcher import run; run()", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert done.stderr == ""


def test_list_and_version_do_not_wait_for_torch_and_know_every_name():
    code = (
        "import sys; from hf_attn_ext_launcher import run\n"
        "try: run()\n"
        "except SystemExit as exit: print(exit.code, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    for words, said in (
        (["list", "kernels"], hax.list_kernels()),
        (["list", "masks"], hax.list_masks()),
        (["list", "statistics"], list_statistics()),
        (["list", "models"], hax.supported_model_types()),
        (["--version"], [f"hf-attn-ext {hax.__version__}"]),
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines() == [*said, "0 False False"], done.stderr
