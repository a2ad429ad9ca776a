"""The wheel, installed in an environment of its own, away from the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

import vase_cli
from vase_cli import plugins
from vase_cli.config.catalog import Catalog

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[1]


class Installed(NamedTuple):
    """The wheel, and the environment it is installed in."""

    wheel: Path
    folder: Path

    def run(self, *arguments: str, program: str = "vase", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in an empty folder, without the network."""
        empty = self.folder.parent / "empty"
        empty.mkdir(exist_ok=True)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VASE", "XDG"))}
        clean |= {"HOME": str(empty), "HF_HUB_OFFLINE": "1", "VIRTUAL_ENV": str(self.folder), "COLUMNS": "200"}
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=empty, env=clean | environment, capture_output=True, text=True,
        )  # fmt: skip

    def lines(self, *arguments: str) -> list[str]:
        """What a command prints; it must succeed and say nothing else."""
        done = self.run(*arguments)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout.splitlines()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("package")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"),
            *("--no-deps", "--no-index", "--no-cache-dir", "--disable-pip-version-check", "-q", str(wheel)),
        ],
        check=True,
    )
    # The dependencies of this environment, by path: a .pth file there that names the checkout is not followed.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return Installed(wheel, environment)


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_carries_code_types_zoo_and_recipes(installed: Installed):
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    assert "vase_cli/py.typed" in names
    assert {f"vase_cli/{name}" for name in files_below(REPOSITORY / "vase_cli")} <= names
    for kind in ("zoo", "recipes"):
        expected = {f"vase_cli/_data/{kind}/{name}" for name in files_below(REPOSITORY / kind)}
        assert expected and expected <= names
    top = {name.partition("/")[0] for name in names}
    assert top == {"vase_cli", f"vase_cli-{vase_cli.__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_the_wheel_says_what_it_needs(installed: Installed):
    with zipfile.ZipFile(installed.wheel) as archive:
        metadata = archive.read(f"vase_cli-{vase_cli.__version__}.dist-info/METADATA").decode()
        scripts = archive.read(f"vase_cli-{vase_cli.__version__}.dist-info/entry_points.txt").decode()
    for line in ("Name: vase-cli", "License-Expression: MIT", "Provides-Extra: flash", "Provides-Extra: dev"):
        assert line in metadata
    needed = {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist")}
    for name in ("torch", "transformers", "datasets", "math-verify", "pyyaml", "rich", "typer"):
        assert any(each.startswith(name) for each in needed)
    assert "vase = vase_cli.__main__:main" in scripts


def test_it_runs_from_its_own_environment(installed: Installed):
    done = installed.run("-c", "import vase_cli; print(vase_cli.__file__)", program="python")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.folder)
    assert installed.lines("--version") == [f"vase {vase_cli.__version__}"]


@pytest.mark.parametrize("kind", ["zoo", "recipes"])
def test_it_lists_the_names_of_the_checkout(kind: str, installed: Installed):
    first, *rows = installed.lines(kind, "list")
    assert first.startswith("NAME")
    here = {path.parent.name if path.name == "entry.yaml" else path.stem for path in (REPOSITORY / kind).glob("*.yaml")}
    here |= {path.parent.name for path in (REPOSITORY / kind).glob("*/entry.yaml")}
    listed = [row.split()[0] for row in rows]
    assert sorted(listed) == sorted(here) == sorted(Catalog.open().files(kind))
    parsed = [json.loads(line) for line in installed.lines(kind, "list", "--json")]
    assert sorted(each["name"] for each in parsed) == sorted(here)


@pytest.mark.parametrize("kind", ["zoo", "recipes"])
def test_what_it_carries_is_valid_there(kind: str, installed: Installed):
    assert installed.run(kind, "validate").returncode == 0


def test_it_lists_tasks_and_methods(installed: Installed):
    listed = [json.loads(line)["name"] for line in installed.lines("tasks", "list", "--json")]
    assert listed == plugins.names("tasks")
    assert [row.split()[0] for row in installed.lines("tasks", "list")[1:]] == listed
    listed = [json.loads(line)["name"] for line in installed.lines("methods", "list", "--json")]
    assert listed == plugins.names("eviction")


def test_a_mistake_there_is_one_line(installed: Installed):
    done = installed.run("zoo", "show", "qwen3-9b")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "vase: model 'qwen3-9b' is no zoo entry, folder or hub id; did you mean 'qwen3-8b'?\n"


def test_the_embedded_model_evaluates_there_without_a_network(installed: Installed):
    done = installed.run(
        "eval", "--method", "vase-attnv", "--limit", "2", "--slots", "2", "--json", OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["tasks"]["recurrence"]["samples"] == 2
    assert summary["tasks"]["recurrence"]["accuracy"] == 1.0
