"""New processes with PyTorch imported, and nothing of tsplat: forked from one process, as the import takes seconds.

``python -m tests.support.forks`` is that process. It reads requests from its standard input, one JSON object per line,
and answers each with an exit status.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from tests.support.paths import ROOT


class Forks:
    """Runs code in forked processes, one at a time.

    Args:
        folder: For the output of the processes.
    """

    def __init__(self, folder):
        self.folder = folder
        self.server = None

    def run(self, code, *arguments, cwd=ROOT, environment=None, timeout=120):
        """Runs code as ``python -c`` does.

        Args:
            code: Python code. `torch` is imported already.
            arguments: The rest of `sys.argv`.
            cwd: The working directory.
            environment: Environment variables; None for those of this process.
            timeout: Seconds after which the process is killed.

        Returns:
            A `subprocess.CompletedProcess` with the output as text.
        """
        if self.server is None:
            command = [sys.executable, "-m", "tests.support.forks"]
            pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.server = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        outputs = [str(self.folder / name) for name in ("stdout", "stderr")]
        request = {
            "code": code, "arguments": list(map(str, arguments)), "cwd": str(cwd), "outputs": outputs,
            "environment": dict(os.environ if environment is None else environment), "timeout": timeout,
        }  # fmt: skip
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        status = int(self.server.stdout.readline())
        return subprocess.CompletedProcess([code, *arguments], status, *(Path(path).read_text() for path in outputs))

    def close(self):
        if self.server is not None:
            self.server.communicate()


def run(request):
    """Runs the code of a request in this process, which ends."""
    status = 1
    try:
        for descriptor, path in enumerate(request["outputs"], start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        sys.path[0] = request["cwd"]
        sys.argv = ["-c", *request["arguments"]]
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


def main():
    import torch  # noqa: F401  # for all processes

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
