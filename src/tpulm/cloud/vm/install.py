"""An interpreter that has the bundle's tpulm: one that is there, or one that is made. For Python 3.8 on."""

import json
import subprocess
import sys
from pathlib import Path

from services import say

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 1800.0  # that one step may take


def environment():
    """Its path: the VM's own, if that has it, else one made from the bundle. Raises RuntimeError, OSError, SubprocessError."""
    bundle = json.loads((HERE / "bundle.json").read_text())
    own = HERE / "env" / "bin" / "python"
    for python in (str(own), bundle["python"], sys.executable):
        if python and digest_of(python) == bundle["digest"]:
            return python
    say("installing tpulm")
    base, source = bundle["python_version"], []
    if (HERE / "wheels").is_dir():
        base = str(HERE / "interpreter" / "bin" / ("python" + base))
        source = ["--offline", "--no-index", "--find-links", str(HERE / "wheels")]
    install = [str(HERE / "uv"), "pip", "install", "--quiet", "--python", str(own)]
    run([str(HERE / "uv"), "venv", "--quiet", "--clear", "--python", base, *source[:1], str(HERE / "env")])
    run([*install, *source, "-r", str(HERE / "pins.txt")])
    run([*install, *source[:1], "--no-deps", str(HERE / bundle["wheel"])])
    if digest_of(own) != bundle["digest"]:
        raise RuntimeError("what was installed is not the tpulm that was launched")
    return str(own)


def run(command):
    """Raises RuntimeError with the end of what it said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise RuntimeError("{}: exit code {}: {}".format(" ".join(command[:3]), done.returncode, done.stdout[-1000:]))


def digest_of(python):
    """Of the tpulm that an interpreter has; None where it has none."""
    try:
        done = subprocess.run([python, HERE / "digest.py"], capture_output=True, text=True, timeout=300)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
