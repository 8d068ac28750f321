"""Runs code in new processes that have imported PyTorch or other modules, but not tsplat. They are forked from one
process, because imports take seconds.

``python -m tests.support.forks MODULE...`` is that process. It imports the modules, reads requests from its standard
input, one JSON object per line, and answers each with an exit status and the output.
"""

import contextlib
import importlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import traceback

from tests.support.paths import ROOT


class Forks:
    """Runs code in forked processes, one at a time, with some modules imported."""

    def __init__(self, modules=("torch",)):
        self.modules = modules
        self.server = None

    def run(self, code, *arguments, cwd=ROOT, environment=None, timeout=120):
        """Runs code like ``python -c``, and returns a `subprocess.CompletedProcess` with the output as text."""
        if self.server is None:
            command = [sys.executable, "-m", "tests.support.forks", *self.modules]
            pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.server = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        request = {
            "code": code, "arguments": list(map(str, arguments)), "cwd": str(cwd), "timeout": timeout,
            "environment": dict(os.environ if environment is None else environment),
        }  # fmt: skip
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return subprocess.CompletedProcess([code, *arguments], *json.loads(self.server.stdout.readline()))

    def close(self):
        if self.server is not None:
            self.server.communicate()


def run(request, outputs):
    """Runs the code of a request in this process, and then ends it."""
    status = 1
    try:
        os.setsid()
        for descriptor, output in enumerate(outputs, start=1):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, 64)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        sys.path[0] = request["cwd"]
        sys.argv = ["-c", *request["arguments"]]
        logging.getLogger("tsplat").setLevel(logging.ERROR)  # whether kernels are compiled here depends on the cache
        signal.alarm(request["timeout"])
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def answer(request):
    """Returns the exit status, the standard output and the standard error of a request."""
    pipes = [os.pipe(), os.pipe()]
    child = os.fork()
    if child == 0:
        run(request, [writing for _, writing in pipes])
    found = {reading: b"" for reading, _ in pipes}
    status = None
    with selectors.DefaultSelector() as selector:
        for reading, writing in pipes:
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(0.1)
            for key, _ in ready:
                found[key.fd] += (content := os.read(key.fd, 65536))
                if not content:
                    selector.unregister(key.fd)
            # Processes started by the child may keep the pipes open.
            if not ready and status is not None:
                break
            if not ready and (ended := os.waitpid(child, os.WNOHANG))[0]:
                status = ended[1]
    if status is None:
        status = os.waitpid(child, 0)[1]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    for reading in found:
        os.close(reading)
    return os.waitstatus_to_exitcode(status), *(content.decode(errors="replace") for content in found.values())


def main():
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
