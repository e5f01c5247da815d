"""Finds or makes an interpreter that has the bundle's tpulm. For Python 3.8 and newer."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from services import kill, log

HERE = Path(__file__).resolve().parent
STEP_SECONDS = 1800.0  # for which one step may take
ALIVE_SECONDS = 10.0  # between calls of `alive`
RETRY_SECONDS = (10.0, 60.0)  # before a step is tried again: one failed download of one host would cost the whole slice
DOWNLOAD_SECONDS = 300  # for which uv waits for a package index; its default of 30 is often too short


def environment(alive):
    """The path of an interpreter on the VM, else of one made from the bundle. Raises RuntimeError, OSError, SubprocessError."""
    bundle = json.loads((HERE / "bundle.json").read_text())
    own = HERE / "env" / "bin" / "python"
    for python in (str(own), bundle["python"], sys.executable):
        if python and digest_of(python) == bundle["digest"]:
            return python
    log("installing tpulm")
    base, source = bundle["python_version"], []
    if (HERE / "wheels").is_dir():
        base = str(HERE / "interpreter" / "bin" / ("python" + base))
        source = ["--offline", "--no-index", "--find-links", str(HERE / "wheels")]
    install = [str(HERE / "uv"), "pip", "install", "--quiet", "--python", str(own)]
    run_with_retries([str(HERE / "uv"), "venv", "--quiet", "--clear", "--python", base, *source[:1], str(HERE / "env")], alive)
    run_with_retries([*install, *source, "-r", str(HERE / "pins.txt")], alive)
    packages = HERE / "env" / "lib" / ("python" + bundle["python_version"]) / "site-packages"
    (packages / "tpulm.pth").write_text(str(HERE / "source") + "\n")
    if digest_of(own) != bundle["digest"]:
        raise RuntimeError("what was installed is not the tpulm that was launched")
    return str(own)


def run_with_retries(command, alive):
    for pause in RETRY_SECONDS:
        try:
            run(command, alive)
            return
        except RuntimeError as error:
            log(f"trying again: {error}")
        until = time.time() + pause
        while time.time() < until:
            alive()
            time.sleep(ALIVE_SECONDS)
    run(command, alive)


def run(command, alive):
    """Run a command; raises RuntimeError with the end of its output if it fails or takes too long. `alive` is called meanwhile;
    an error that it raises ends the process, too.
    """
    until, environment = time.time() + STEP_SECONDS, dict(os.environ, UV_HTTP_TIMEOUT=str(DOWNLOAD_SECONDS))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment)
        try:
            while process.poll() is None and time.time() < until:
                alive()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ALIVE_SECONDS)
        finally:
            if process.poll() is None:
                kill(process)
        output.seek(0)
        if process.returncode != 0:
            raise RuntimeError(
                "{}: exit code {}: {}".format(" ".join(command[:3]), process.returncode, output.read()[-1000:].strip())
            )


def digest_of(python):
    """The digest of an interpreter's tpulm; None if it has none."""
    try:
        done = subprocess.run([python, HERE / "digest.py"], capture_output=True, text=True, timeout=300)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
