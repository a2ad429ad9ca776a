"""Minerva Math: undergraduate science problems with numeric and symbolic answers."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="minerva",
    title="Minerva Math",
    hub=(HubSource("math-ai/minervamath", "test", "ee46ddc498933b1977577953250ca5c66be64f96"),),
    count=272,
    license="not known; see the source",
    grader="math",
    fallbacks=("final_answer_phrase",),
    samples=8,
)
