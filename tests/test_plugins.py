"""Plug-ins by name: built-in ones found without importing them, and those of other packages."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.engines import generate_with_lists, load_model, make_engine, make_requests, token_ids
from helpers.plug_ins import installed_package

from vase_cli import plugins
from vase_cli.cli.app import main
from vase_cli.config.method_options import make_method
from vase_cli.config.schema import Recipe
from vase_cli.errors import ConfigError
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.graders.base import Grader
from vase_cli.tasks.base import Task, resolve_tasks

GROUPS = ["eviction", "tasks", "graders", "attention"]

THIRD_PARTY = '''
from dataclasses import dataclass

from vase_cli.eviction.base import EvictionPolicy
from vase_cli.graders.base import Grader
from vase_cli.attention.sdpa import SDPA
from vase_cli.tasks.base import Problem, Task


@dataclass(frozen=True)
class Oldest(EvictionPolicy):
    """Keep the oldest tokens, but for the first few.

    Attributes:
        skip: how many of the first tokens go.
    """

    skip: int = 2

    def keep_scores(self, view):
        positions = view.candidate_positions
        return (-positions.float()).masked_fill(positions < self.skip, -float("inf"))


class SameText(Grader):
    name = "same-text"
    policies = ()

    def judge(self, answer, extracted):
        return extracted == answer


class Backend(SDPA):
    name = "slow"


TASK = Task(
    name="sums", title="Sums", hub=(), count=2, license="MIT", url="", grader="same-text", samples=1,
    groups=("arithmetic",), generate=lambda: [Problem("0", "1+1", "2"), Problem("1", "2+3", "5")],
)
'''

ENTRY_POINTS = """
[vase.eviction]
oldest = third_party_of_vase:Oldest
snapkv = third_party_of_vase:Oldest

[vase.tasks]
sums = third_party_of_vase:TASK
gsm8k = third_party_of_vase:TASK

[vase.graders]
same-text = third_party_of_vase:SameText
math = third_party_of_vase:SameText

[vase.attention]
slow = third_party_of_vase:Backend
sdpa = third_party_of_vase:Backend

[vase.unknown]
nothing = third_party_of_vase:Nothing
"""
EXTRA = {"eviction": "oldest", "tasks": "sums", "graders": "same-text", "attention": "slow"}
TAKEN = {"eviction": "snapkv", "tasks": "gsm8k", "graders": "math", "attention": "sdpa"}


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that is installed in a folder of its own; the name of its module."""
    name = "third_party_of_vase"
    with installed_package(tmp_path, monkeypatch, name, {f"{name}.py": THIRD_PARTY}, ENTRY_POINTS):
        yield name


def run_python(code: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_names_are_found_without_importing_any_plug_in():
    code = """
import json, sys
from vase_cli import plugins
names = {group: plugins.names(group) for group in %r}
print(json.dumps({"names": names, "modules": sorted(sys.modules)}))
"""
    found = run_python(code % (GROUPS,))
    modules = set(found["modules"])
    assert not modules & {"torch", "transformers", "datasets", "yaml", "rich", "sympy"}
    loaded = {name for name in modules if name.startswith("vase_cli")}
    assert loaded == {"vase_cli", "vase_cli.errors", "vase_cli.plugins", *(f"vase_cli.{group}" for group in GROUPS)}
    assert found["names"] == {group: plugins.names(group) for group in GROUPS}


@pytest.mark.parametrize("group", GROUPS)
def test_the_names_are_those_of_the_files(group: str):
    folder = Path(plugins.__file__).parent / group
    files = {path.stem for path in folder.glob("*.py") if path.stem != "base" and not path.stem.startswith("_")}
    assert plugins.names(group) == sorted(name.replace("_", "-") if group == "eviction" else name for name in files)
    assert files


@pytest.mark.parametrize(
    ("group", "is_one"),
    [
        ("eviction", lambda found: issubclass(found, EvictionPolicy)),
        ("tasks", lambda found: isinstance(found, Task)),
        ("graders", lambda found: issubclass(found, Grader)),
        ("attention", lambda found: {"check", "prefill", "decode"} <= set(dir(found()))),
    ],
)
def test_every_name_loads_what_its_group_holds(group: str, is_one: Callable[[object], bool]):
    for name in plugins.names(group):
        found = plugins.load(group, name)
        assert is_one(found), name
        if group != "eviction":
            assert found.name == name


@pytest.mark.parametrize(
    ("group", "name", "line"),
    [
        ("eviction", "vase-atnv", "no method 'vase-atnv'; did you mean 'vase-attnv'?"),
        ("eviction", "vase_attnv", "no method 'vase_attnv'; did you mean 'vase-attnv'?"),
        ("tasks", "gsm8", "no task 'gsm8'; did you mean 'gsm8k'?"),
        ("graders", "maths", "no grader 'maths'; did you mean 'math'?"),
        ("attention", "flash_attention", "no attention backend 'flash_attention'; did you mean 'flash_attention_2'?"),
        ("graders", "zzz", "no grader 'zzz'; there are: choice, integer, math, number"),
        ("eviction", "base", None),
        ("eviction", "_scores", None),
        ("eviction", "", None),
    ],
)
def test_a_name_that_is_not_there_gets_the_nearest_one(group: str, name: str, line: str | None):
    with pytest.raises(ConfigError) as caught:
        plugins.load(group, name)
    assert str(caught.value).startswith(line or f"no method '{name}'; ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("group", GROUPS)
def test_plug_ins_of_other_packages_are_found_and_then_loaded(group: str, third_party: str):
    names = plugins.names(group)
    assert EXTRA[group] in names and third_party not in sys.modules
    found = plugins.load(group, EXTRA[group])
    assert third_party in sys.modules
    assert (found if isinstance(found, type) else type(found)).__module__ in (third_party, "vase_cli.tasks.base")
    close = EXTRA[group][:-1]
    with pytest.raises(ConfigError, match=f"did you mean '{EXTRA[group]}'"):
        plugins.load(group, close)


@pytest.mark.parametrize("group", GROUPS)
def test_a_built_in_wins_over_an_entry_point_of_its_name(group: str, third_party: str):
    assert plugins.names(group).count(TAKEN[group]) == 1
    found = plugins.load(group, TAKEN[group])
    assert third_party not in sys.modules
    assert getattr(found, "__module__", "vase_cli").startswith("vase_cli") and getattr(found, "name", "") != "sums"


@pytest.mark.parametrize("group", ["eviction", "graders", "attention"])
def test_a_summary_is_the_first_line_that_the_class_says_of_itself(group: str, third_party: str):
    for name in plugins.names(group):
        said = inspect.cleandoc(plugins.load(group, name).__doc__ or "")
        assert plugins.summary(group, name) == said.partition("\n")[0]
    assert plugins.summary("eviction", "oldest") == "Keep the oldest tokens, but for the first few."


def test_a_summary_that_the_file_itself_does_not_have_is_taken_from_the_class():
    assert plugins.summary("tasks", "gsm8k") == (Task.__doc__ or "").partition("\n")[0]


def test_without_the_package_its_names_are_unknown():
    for group, name in EXTRA.items():
        assert name not in plugins.names(group)
        with pytest.raises(ConfigError):
            plugins.load(group, name)


def test_a_method_of_another_package_runs_through_the_engine(third_party: str, model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    recipe = Recipe("own", "tiny", method="oldest", method_options={"skip": 3})
    policy = make_method(recipe)
    assert repr(policy) == "Oldest(protect_prompt=False, skip=3)"
    requests = [make_requests()[index] for index in (1, 3, 4, 5)]
    got = token_ids(make_engine(model, policy, max_new_tokens=25), requests)
    cuts = 0
    for request in requests:
        tokens, made, _ = generate_with_lists(model, policy, 16, 4, request, 25)
        assert got[request.id] == tokens
        cuts += made
    assert cuts > 8
    assert got != token_ids(make_engine(model, max_new_tokens=25), requests)
    with pytest.raises(ConfigError, match="skip"):
        make_method(Recipe("own", "tiny", method="oldest", method_options={"skip": "many"}))
    with pytest.raises(ConfigError, match="did you mean 'skip'"):
        make_method(Recipe("own", "tiny", method="oldest", method_options={"skipp": 1}))


def test_a_task_and_grader_of_another_package_work_together(third_party: str):
    (task,) = resolve_tasks(["sums"])
    assert resolve_tasks(["arithmetic"]) == [task]
    problems = task.problems().problems
    assert [problem.answer for problem in problems] == ["2", "5"]
    with plugins.load("graders", task.grader)() as grader:
        assert [grader.grade(problem.answer, "so \\boxed{5}").status for problem in problems] == ["wrong", "correct"]


def test_a_backend_of_another_package_serves_the_engine(third_party: str, model_folder: Callable[..., Path]):
    from vase_cli.engine.engine import Engine

    model, requests = load_model(model_folder("qwen3")), make_requests()[:3]
    built_in = make_engine(model, max_new_tokens=8)
    own = Engine(model, plugins.load("eviction", "full")(), plugins.load("attention", "slow")(), built_in.settings)
    assert token_ids(own, requests) == token_ids(built_in, requests)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import a_module_that_nobody_has", "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"),
        ("raise RuntimeError('boom\\nand more')", "RuntimeError: boom"),
        ("raise SystemExit", "SystemExit"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("TASK = Oldest = None\ndel TASK, Oldest", "AttributeError: module"),
    ],
)
def test_a_plug_in_that_is_broken_is_named_in_one_line(tmp_path: Path, third_party: str, source: str, fault: str):
    (tmp_path / "third_party_of_vase.py").write_text(source + "\n")
    for group, kind in (("eviction", "method 'oldest'"), ("tasks", "task 'sums'")):
        assert EXTRA[group] in plugins.names(group)
        with pytest.raises(ConfigError) as caught:
            plugins.load(group, EXTRA[group])
        said = str(caught.value)
        assert said.startswith(f"the {kind} of the package third-party-of-vase fails ({fault}")
        assert said.endswith("; fix or uninstall the package third-party-of-vase") and "\n" not in said
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("command", ["tasks list", "methods list"])
@pytest.mark.parametrize("source", ["raise RuntimeError('boom')", "class TASK: groups = 3\nclass Oldest: __doc__ = 3"])
def test_a_list_leaves_a_broken_plug_in_out(
    tmp_path: Path, third_party: str, capsys: pytest.CaptureFixture[str], command: str, source: str
):
    (tmp_path / "third_party_of_vase.py").write_text(source + "\n")
    with pytest.raises(SystemExit) as exit_info:
        main(command.split())
    out, err = capsys.readouterr()
    assert exit_info.value.code == 0
    assert {"tasks list": "gsm8k", "methods list": "vase-attnv"}[command] in out
    (line,) = err.splitlines()
    assert line.startswith("left out: the ") and "of the package third-party-of-vase fails (" in line


def test_other_tasks_run_beside_a_broken_one(tmp_path: Path, third_party: str):
    (tmp_path / "third_party_of_vase.py").write_text("TASK = 3\n")
    assert [task.name for task in resolve_tasks(["aime"])] == ["aime24", "aime25", "aime26"]
    with pytest.raises(ConfigError, match="no task 'sum'; did you mean 'sums'"):
        resolve_tasks(["sum"])
    with pytest.raises(
        ConfigError, match=r"the task 'sums' of the package third-party-of-vase fails .TypeError: it is of"
    ):
        resolve_tasks(["sums"])


def test_a_plug_in_that_raises_when_it_is_called_is_named(tmp_path: Path, third_party: str):
    source = THIRD_PARTY.replace('[Problem("0"', '1 / 0 and [Problem("0"').replace(
        "    skip: int = 2", "    skip: int = 2\n\n    def __post_init__(self):\n        raise KeyError('skip')"
    )
    (tmp_path / "third_party_of_vase.py").write_text(source)
    (task,) = resolve_tasks(["sums"])
    with pytest.raises(
        ConfigError, match=r"the task 'sums' of the package .* fails .ZeroDivisionError: division by zero"
    ):
        task.problems()
    with pytest.raises(ConfigError, match=r"the method 'oldest' of the package .* fails .KeyError 'skip'"):
        make_method(Recipe("own", "tiny", method="oldest"))


@pytest.mark.parametrize("group", ["graders", "attention"])
def test_a_plug_in_that_raises_when_it_is_made_is_named(tmp_path: Path, third_party: str, group: str):
    raising = "\n    def __init__(self):\n        raise RuntimeError('not here')\n"
    source = THIRD_PARTY.replace("    policies = ()\n", f"    policies = (){raising}")
    (tmp_path / "third_party_of_vase.py").write_text(source.replace('name = "slow"\n', f'name = "slow"{raising}'))
    with pytest.raises(ConfigError, match=r"of the package third-party-of-vase fails .RuntimeError: not here"):
        plugins.make(group, EXTRA[group])


@pytest.mark.parametrize("group", ["graders", "attention"])
def test_a_plug_in_of_another_class_is_named(tmp_path: Path, third_party: str, group: str):
    (tmp_path / "third_party_of_vase.py").write_text("class SameText: pass\nBackend = SameText\n")
    with pytest.raises(ConfigError, match=r"third-party-of-vase fails .TypeError: its class SameText has no "):
        plugins.make(group, EXTRA[group])
