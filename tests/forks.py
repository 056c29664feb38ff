"""Processes of the command line that are forks of this one, which has imported everything.

A training in another process costs eight seconds for its imports and half a second for itself. A
fork has its own signals, files, environment and exit code too; what it does not show is how an
interpreter starts and ends, and a training draws no figures in it, which takes longest of all.
"""

import locale
import os
import signal
import subprocess
import sys
import traceback
import warnings
from logging import getLogger
from runpy import run_module

# ruff: noqa: F401, SIM115 - imports for their time, and files that stay open
import sklearn.datasets
import torch._dynamo
import torch.utils.flop_counter

import pdecnn.cli
import pdecnn.reports.run_figures

_DESCRIPTORS = "/dev/fd"


class Fork(subprocess.Popen):
    """As Popen for [python, "-m", module, ...] and [python, "-c", code, ...].

    Any other program is started as ever, and so is Python where a fork could not compute: after
    several threads have, or with a GPU.
    """

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        (_, _, shell, *pipes), start_new_session = rest[:9], rest[14]
        if not _is_python(args) or shell:
            first = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env)
            super()._execute_child(*first, *rest)
            return
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads do not fork
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _settle(pipes, cwd, env)
                _forget()
                if start_new_session:
                    os.setsid()
                if preexec_fn is not None:
                    preexec_fn()
                code = _run(list(map(os.fspath, args)))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _is_python(args):
    is_able = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return args[0] == sys.executable and args[1] in ("-c", "-m") and is_able


def _settle(pipes, cwd, env):
    """Streams, folder and environment as exec would have them, and no file of the parent."""
    stdin, _, _, stdout, _, stderr = pipes
    for number, pipe in enumerate((stdin, stdout, stderr)):
        if pipe != -1:
            os.dup2(pipe, number)
    # The parent's files are let go, but not their numbers: objects that own them are still here.
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(_DESCRIPTORS):
        if int(name) > 2 and os.path.exists(f"{_DESCRIPTORS}/{name}"):
            os.dup2(nothing, int(name))
    os.chdir(cwd or ".")
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    encoding = os.environ.get("PYTHONIOENCODING") or locale.getencoding()
    options = {"encoding": encoding, "closefd": False}
    sys.stdin, sys.stdout = open(0, **options), open(1, "w", **options)
    sys.stderr = open(2, "w", 1, errors="backslashreplace", **options)
    subprocess.Popen = Fork  # for a queue's processes
    pdecnn.reports.run_figures.draw_run_figures = lambda run: []


def _forget():
    """Let go of what Python itself would not have at its start."""
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.resetwarnings()
        warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    for name in (None, "pdecnn"):
        logger = getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)


def _run(args):
    """The program; its exit code."""
    code = 0
    try:
        if args[1] == "-c":
            sys.argv = ["-c", *args[3:]]
            exec(args[2], {"__name__": "__main__"})
        else:
            sys.argv = [args[2], *args[3:]]
            run_module(args[2], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code or 0
