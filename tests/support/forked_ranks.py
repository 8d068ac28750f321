"""Makes torchrun's launcher fork ranks from its own process, because the imports of a rank take seconds.

``python -m tests.support.forked_ranks ARGUMENTS`` runs torchrun with such ranks.
"""

import importlib
import os
import runpy
import signal
import subprocess
import sys
import time

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

MODULES = (
    "matplotlib.figure", "scipy.spatial", "tests.support.train_worker", "torch._dynamo",
    "torch.distributed.checkpoint", "torch.distributed.launcher.api", "tsplat.cli.commands", "tsplat.kernels",
    "tsplat.triton_cpu",
)  # fmt: skip
"""Modules that ranks need; see :class:`tests.support.forks.Forks`."""

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that the launcher catches and a new process does not."""


class Fork:
    """A forked process that runs ``python [-m] NAME ARGUMENTS``, with the methods of Popen that the launcher calls."""

    def __init__(self, arguments, environment):
        python, *arguments = (argument for argument in arguments if argument != "-u")
        assert python == sys.executable, python
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            run(arguments, environment)

    def poll(self):
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.02)
        return self.returncode


def run(arguments, environment):
    """Runs a module or a script in this process, and then ends it."""
    status = 1
    try:
        os.setsid()
        for caught in CAUGHT:
            signal.signal(caught, signal.default_int_handler if caught == signal.SIGINT else signal.SIG_DFL)
        os.closerange(3, 1024)  # sockets of the launcher
        os.environ.clear()
        os.environ.update(environment)
        is_module = arguments[0] == "-m"
        sys.argv[:] = arguments[is_module:]
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # PyTorch's hook, which prints the rank
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork_ranks():
    """Makes the launcher in this process fork its ranks."""
    SubprocessHandler._popen = lambda self, arguments, environment: Fork(arguments, environment)


def import_all():
    """Imports the modules that ranks need before they are forked."""
    for module in MODULES:
        importlib.import_module(module)


def main():
    """Runs torchrun with forked ranks."""
    from torch.distributed import run as torchrun

    import_all()
    fork_ranks()
    torchrun.main()


if __name__ == "__main__":
    main()
