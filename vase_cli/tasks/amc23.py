"""AMC 12 2023, A and B: 40 problems reworded to ask for an integer instead of an option."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="amc23",
    title="AMC 2023",
    hub=(HubSource("math-ai/amc23", "test", "80815d37005feb82cd7f8fbc6901d5d3eff43057"),),
    count=40,
    license="none stated on the hub",
    grader="math",
    fallbacks=("final_answer_phrase",),
    samples=16,
)
