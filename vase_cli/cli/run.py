"""``vase run``: prompts in, text out."""

import typer


def run() -> None:
    """Generate text for one prompt, or for each prompt of a file."""
    typer.echo("")
