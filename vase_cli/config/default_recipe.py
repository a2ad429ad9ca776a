"""Which recipe a command takes where it is given none, and why: one rule for all commands.

A recipe counts if the weights of its model fit the free memory of the device, with room, and the model can solve what
is asked: its zoo entry leaves ``solves`` out, or names every task there. Its files must be here (a model folder, or the
hub's cache), or else the hub must answer. Of several the first of these decides:

1. a model whose entry's ``solves`` names the tasks;
2. off a CUDA GPU, a model of at most ``QUICK_PARAMETERS``;
3. files that are here; the hub is asked only where no model of 2 has them, and only for models of 2;
4. a model that thinks;
5. the most parameters;
6. the name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vase_cli import hub
from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_option
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.device import Device, readable_bytes, resolve_device
from vase_cli.errors import ConfigError, VaseError

PROMPTS = ("prompts",)
"""What ``vase run`` asks for: a task that no entry's ``solves`` can name."""

QUICK_PARAMETERS = 1_000_000_000
"""The most that are taken off a CUDA GPU: every token reads all weights, 4 GB in float32."""

_SHARE_FOR_WEIGHTS = 0.85  # of the free memory; the rest is for the cache of a few sequences and the working set
_OTHERS = "choose another with --recipe, --model or $VASE_RECIPE"


@dataclass(frozen=True)
class Candidate:
    """A recipe of the catalog, and what decides whether it is taken.

    Attributes:
        recipe, entry: resolved.
        folder: the model's files; None where they are not here.
        parameters: elements of the weights.
        weight_bytes: their size on the device.
        quick: whether texts come at a speed that nobody has to ask for.
    """

    recipe: Recipe
    entry: ModelEntry
    folder: Path | None
    parameters: int
    weight_bytes: int
    quick: bool

    def solves(self, tasks: Sequence[str]) -> bool:
        """Whether the model can solve tasks; without any, those of the recipe, of which there must be one."""
        wanted = {*(tasks or self.recipe.tasks)}
        return bool(wanted) and (not self.entry.solves or wanted <= {*self.entry.solves})

    def rank(self, tasks: Sequence[str]) -> tuple[bool, bool, bool, bool, int]:
        """What decides between two candidates that solve the tasks: the larger is taken."""
        made_for = bool(tasks and self.entry.solves)
        return made_for, self.quick, self.folder is not None, self.recipe.think, self.parameters


@dataclass(frozen=True)
class Choice:
    """The recipe that is taken, and why: "the largest of ..."; ``limited`` where its model may not solve the tasks."""

    recipe: str
    why: str
    limited: bool = False

    @property
    def line(self) -> str:
        """What a command prints."""
        return f"recipe {self.recipe}: {self.why}; {_OTHERS}"


@dataclass(frozen=True)
class Candidates:
    """The recipes of a catalog for one device, by name: those that fit it, and those whose weights are too large."""

    device: Device
    fitting: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]

    @classmethod
    def find(cls, catalog: Catalog, device: str, changes: Mapping[str, Any] | None = None) -> "Candidates":
        """Look at every recipe, with the recipe keys of ``changes`` for a device; VaseError if there is none such.

        A recipe is left out if its file is broken, the changes are not for its model, it is for another type of device,
        nobody knows the size of its model, or the model's folder has no weights.
        """
        target = Device(resolve_device(check_option("device", device)))
        found = []
        for name in catalog.files("recipes"):
            try:
                recipe, entry = catalog.resolve(name, changes or {})
            except VaseError:
                continue  # `vase recipes validate` says what is wrong with a file
            if recipe.device.partition(":")[0] in ("auto", target.type):
                found += [candidate] if (candidate := _candidate(recipe, entry, target)) else []
        room = target.available_bytes() * _SHARE_FOR_WEIGHTS
        fitting = tuple(candidate for candidate in found if candidate.weight_bytes <= room)
        return cls(target, fitting, tuple(candidate for candidate in found if candidate not in fitting))

    def choose(
        self, tasks: Sequence[str], *, or_own: bool = False, silence: Callable[[], str | None] = hub.silence
    ) -> Choice:
        """The recipe for tasks, or without any for the recipe's own.

        Where none can be had, ``or_own`` takes one that is here for its own tasks, such as the embedded model's.
        ``silence`` says why the hub gives no files, None if it does. ConfigError, which says what would do, if there is
        no recipe.
        """
        able = [candidate for candidate in self.fitting if candidate.solves(tasks)]
        pool = [candidate for candidate in able if candidate.folder]
        silent = None
        if not any(candidate.quick for candidate in pool):
            from_hub = [candidate for candidate in able if candidate.quick]
            silent = silence() if from_hub else None
            pool += from_hub if silent is None else []
        if pool:
            return self._chosen(pool, tasks)
        lacking, advice = self._lacking(able, tasks, silent)
        own = [candidate for candidate in self.fitting if candidate.folder and candidate.solves(())] if or_own else []
        if own:
            best = _best(own, ())
            only = " and ".join(best.entry.solves)
            why = f"it solves {only} only (`vase tasks show {best.entry.solves[0]}`); {lacking}"
            return Choice(best.recipe.name, why, limited=True)
        raise ConfigError(f"no recipe{' for ' if tasks else ''}{', '.join(tasks)}: {lacking}; {advice}")

    def _chosen(self, pool: Sequence[Candidate], tasks: Sequence[str]) -> Choice:
        best = _best(pool, tasks)
        made_for, quick, here, thinks, _ = rank = best.rank(tasks)
        peers = [candidate for candidate in pool if candidate.rank(tasks)[:3] == rank[:3]]
        tied = sum(candidate.rank(tasks) == rank for candidate in peers) > 1
        kind = "thinking model" if thinks else "model"
        which = f"the first by name of the largest {kind}s" if tied else f"the largest {kind}"
        subject = "the only recipe" if len(peers) == 1 else f"{which} of the {len(peers)} recipes"
        made = f" made for {', '.join(tasks)}" if made_for else ""
        bound = "" if self.device.type == "cuda" or made_for else f" with {_bound('at most' if quick else 'over')}"
        why = f"{subject}{made}{bound} that {'fits' if len(peers) == 1 else 'fit'} {self._machine}"
        if here:
            return Choice(best.recipe.name, f"{why} and {'has its' if len(peers) == 1 else 'have their'} files here")
        download = readable_bytes(best.parameters * _width(best.entry.dtype))
        return Choice(best.recipe.name, f"{why}; its files are not here, {download} come from the hub")

    def _lacking(self, able: Sequence[Candidate], tasks: Sequence[str], silent: str | None) -> tuple[str, str]:
        """What would do and why it does not, and what the user can do."""
        if able:
            best = _best(able, tasks)
            name, fits = best.recipe.name, f"{best.recipe.name} fits {self._machine}, but its files are not here"
            if silent is None:  # the hub was not asked
                lacking = f"{fits}, and {_bound('over')} are slow without a CUDA GPU"
                return lacking, f"take it all the same with --recipe {name}"
            return f"{fits} and {silent}", f"name a folder of them with --recipe {name} --model FOLDER"
        solving = [candidate for candidate in self.too_large if candidate.solves(tasks)]
        if not solving:
            return "no model that can be used solves that", _OTHERS
        least = min(solving, key=lambda candidate: candidate.weight_bytes)
        needed = readable_bytes(int(least.weight_bytes / _SHARE_FOR_WEIGHTS))
        lacking = f"{least.recipe.name}, the smallest, needs {needed} of free memory, too much for {self._machine}"
        return lacking, "free some, name another --device, or a smaller model with --model"

    @property
    def _machine(self) -> str:
        return f"this machine ({self.device.description})"


def _best(pool: Sequence[Candidate], tasks: Sequence[str]) -> Candidate:
    """The one taken; of equal ones the first by name, in whose order they are."""
    return max(pool, key=lambda candidate: candidate.rank(tasks))


def _bound(than: str) -> str:
    return f"{than} {QUICK_PARAMETERS // 10**9} billion parameters"


def _candidate(recipe: Recipe, entry: ModelEntry, device: Device) -> Candidate | None:
    """None where nobody knows the size of the model, or its folder has no weights."""
    folder = entry.path if entry.hub_id is None else hub.cached_model(entry.hub_id, entry.revision)
    files = [] if folder is None else hub.weight_files(folder)
    parameters = entry.parameters
    if parameters is None and files:
        parameters = sum(file.stat().st_size for file in files) // _width(entry.dtype)
    if parameters is None or (entry.hub_id is None and not files):
        return None
    dtype = recipe.dtype or "auto"
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else entry.dtype
    quick = device.type == "cuda" or parameters <= QUICK_PARAMETERS
    return Candidate(recipe, entry, folder if files else None, parameters, parameters * _width(dtype), quick)


def _width(dtype: str) -> int:
    """Bytes of an element; of a dtype that nobody states, those of most models."""
    return 4 if dtype == "float32" else 2
