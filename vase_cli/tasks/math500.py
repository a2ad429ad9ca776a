"""MATH-500: 500 competition problems of the MATH test set."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="math500",
    title="MATH-500",
    hub=(HubSource("HuggingFaceH4/MATH-500", "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),),
    count=500,
    license="MIT (the MATH dataset)",
    grader="math",
    fallbacks=("final_answer_phrase",),
    samples=8,
)
