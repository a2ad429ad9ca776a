"""The product on a system that is not POSIX: what such a system lacks is kept from it, but not from other packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# As sitecustomize.py it comes first in every Python process, those that the product starts included.
OTHER_SYSTEM = """
import builtins, types

ABSENT = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}
LACKING = {
    "os": "fork getloadavg getpgid getpgrp geteuid getuid killpg sched_getaffinity setsid sysconf",
    "signal": "SIGALRM SIGHUP SIGKILL SIGUSR1 SIGUSR2 alarm setitimer",
    "select": "epoll poll",
}
import_module = builtins.__import__


def import_elsewhere(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__package__") or (globals or {}).get("__name__", "")
    if importer.split(".")[0] == "vase_cli" and not level:
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        top = name.partition(".")[0]
        if top in LACKING and (name == top or not fromlist):
            whole, here = import_module(top), types.ModuleType(top)
            here.__dict__.update({key: vars(whole)[key] for key in vars(whole) if key not in LACKING[top].split()})
            return here
    return import_module(name, globals, locals, fromlist, level)


builtins.__import__ = import_elsewhere
"""

SESSION = """
import io, json, sys
from contextlib import redirect_stdout
from vase_cli.cli.app import main
from vase_cli.device import Device, available_ram_bytes
from vase_cli.graders.math import MathGrader

outputs = []
for arguments in (
    ["--help"],
    ["run", "Start 5, 5.", "--max-new-tokens", "5", "--device", "cpu"],
    ["eval", "--method", "vase-attnv", "--limit", "1", "--max-new-tokens", "30", "--device", "cpu", "--json"],
):
    with redirect_stdout(io.StringIO()) as out:
        try:
            main(arguments)
        except SystemExit as end:
            assert not end.code, (arguments, end.code)
    outputs.append(out.getvalue())
with MathGrader() as grader:
    outputs.append(grader.grade("b+a", "so it is \\\\boxed{a+b}").status)
import torch
device = Device(torch.device("cpu"))
outputs.append([available_ram_bytes(), device.memory_bytes(), device.peak_bytes()])
print(json.dumps(outputs))
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a user on the other system."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(OTHER_SYSTEM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VASE", "XDG", "PYTHON"))}
    paths = os.pathsep.join([str(tmp_path / "hook"), str(Path(__file__).parents[1])])
    return kept | {"PYTHONPATH": paths, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


def test_help_run_eval_and_grading_need_nothing_of_posix(tmp_path: Path, elsewhere: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "-P", "-c", SESSION], cwd=tmp_path, env=elsewhere, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    help_text, text, summary, grade, memory = json.loads(done.stdout.splitlines()[-1])
    assert "Usage" in help_text
    assert text.strip()
    assert json.loads(summary)["tasks"]["recurrence"]["samples"] == 1
    assert grade == "correct"
    assert all(size > 2**26 for size in memory)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import fcntl", "ModuleNotFoundError"),
        ("from os import sysconf", "ImportError"),
        ("import os.path; os.sysconf", "AttributeError"),
        ("import signal; signal.SIGKILL", "AttributeError"),
    ],
)
def test_the_other_system_lacks_what_it_should(elsewhere: dict[str, str], code: str, error: str):
    """Else the test above would hold for nothing."""
    inside = f"import vase_cli; exec({code!r}, vars(vase_cli))"
    done = subprocess.run([sys.executable, "-c", inside], env=elsewhere, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(error)
    done = subprocess.run([sys.executable, "-c", code], env=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
