"""Processes that hold one library each and answer requests, one JSON object per line."""

import contextlib
import gc
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

__all__ = ["Worker", "import_times", "serve"]


class Worker:
    """A process that holds one library; it is started when it is asked, and again after it ended."""

    def __init__(self, python, library):
        self.python, self.library = python, library
        self._process, self._answers, self._reader, self._errors = None, None, None, None

    def ask(self, timeout_s=300, **request):
        """The answer; ``{"error": …}`` if there is none, and then everything that was built is gone."""
        if self._process is None:
            self._start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return self._lost(f"no answer within {timeout_s:.0f} s")
        except OSError:
            answer = None
        return self._lost("the process ended") if answer is None else json.loads(answer)

    def close(self):
        """End the process."""
        if self._process is not None:
            self._end()

    def _end(self):
        """End the process; its last words."""
        process, self._process = self._process, None
        process.kill()
        process.wait()
        self._reader.join()
        with contextlib.suppress(OSError):  # it may have ended before it read what was written
            process.stdin.close()
        process.stdout.close()
        with self._errors:
            self._errors.seek(0)
            return self._errors.read().strip().splitlines()[-1:]

    def _start(self):
        command = [self.python, str(Path(__file__).with_name("gradients.py")), "--serve", self.library]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, **pipes, text=True, env=_environment(self.library))
        self._answers = queue.Queue()
        self._reader = threading.Thread(target=_forward, args=(self._process.stdout, self._answers), daemon=True)
        self._reader.start()

    def _lost(self, reason):
        return {"error": ": ".join([reason, *self._end()])[:400]}


def serve(library_name):
    """Answer requests: build a case, run one that is built, or forget all of them."""
    import gradient_cases  # the libraries load here

    answers, sys.stdout = sys.stdout, sys.stderr
    library, built = importlib.import_module(library_name), {}
    if library_name == "etp":
        gradient_cases.use_kernels()
    for line in sys.stdin:
        try:
            answer = _answer(gradient_cases, library, built, json.loads(line))
        except Exception as error:  # a library may refuse a case; the comparison goes on without it
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(cases, library, built, request):
    if request["do"] == "forget":
        built.clear()
        gc.collect()
        return {"library": library.__name__, "version": getattr(library, "__version__", None)}
    case = request["case"]
    if request["do"] == "build":
        *built[case], found = cases.prepare(library, case, request["size"], request["limit_s"])
        return found
    return {"seconds": cases.seconds_per_step(*built[case])}


def import_times(python, library, repeat=3):
    """Seconds that a new process takes to import the library, and jax alone, the fastest of a few."""
    found = {}
    for module in ("jax", library):
        code = f"import {module} as m; getattr(m, 'compile', None)"  # a lazy namespace loads on first use
        seen = []
        for _ in range(repeat):
            now = time.perf_counter()
            subprocess.run([python, "-c", code], check=True, capture_output=True, env=_environment(library))
            seen.append(time.perf_counter() - now)
        found[module] = min(seen)
    return found


def _environment(library):
    """Another library's environment must not see this checkout's paths."""
    return {k: v for k, v in os.environ.items() if library == "etp" or k != "PYTHONPATH"}


def _forward(pipe, answers):
    for line in pipe:
        answers.put(line)
    answers.put(None)
