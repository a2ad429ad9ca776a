"""Rows of a dataset on the Hugging Face hub, at a pinned revision."""

from collections.abc import Iterator
from dataclasses import dataclass

from vase_cli.errors import DataError, quiet_log
from vase_cli.tasks._rows import KNOWN_FIELDS, Row, field_key


@dataclass(frozen=True)
class HubSource:
    """One split of a hub dataset; ``revision`` is a commit hash, or None where none is pinned."""

    id: str
    split: str
    revision: str | None
    config: str | None = None
    id_prefix: str = ""

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else f"{self.id} (revision not pinned)"


def read_hub(task: str, source: HubSource, *, gated: bool) -> Iterator[Row]:
    """The rows of one hub dataset, downloaded once; a DataError (offline, gated, gone) says the way out."""
    import datasets

    try:
        with quiet_log("huggingface_hub"):  # it warns on every retry of a connection that is down
            rows = datasets.load_dataset(source.id, source.config, split=source.split, revision=source.revision)
    # Whatever the hub's client raises (its own, HTTP and file system errors), the user's way out is the same.
    except Exception as error:
        page = f"https://huggingface.co/datasets/{source.id}"
        terms = f"it is gated: go online, accept its terms at {page} and log in with `hf auth login`"
        reason = (str(error).strip() or "no reason stated").splitlines()[0]
        problem = f"cannot load {task} from the hub dataset {source.id} ({type(error).__name__}: {reason})"
        file = f"give the problems as a file: --data {task}.jsonl, or $VASE_DATA, a folder with {task}.jsonl in it"
        raise DataError(f"{problem}; {terms if gated else 'go online'}, or {file}") from error
    rows = rows.select_columns([name for name in rows.column_names if field_key(name) in KNOWN_FIELDS])
    yield from (Row(f"{source.id} row {at}", fields, id_prefix=source.id_prefix) for at, fields in enumerate(rows, 1))
