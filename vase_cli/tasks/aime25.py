"""AIME 2025, I and II: every answer is an integer from 0 to 999."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="aime25",
    title="AIME 2025 I and II",
    hub=(HubSource("math-ai/aime25", "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b"),),
    count=30,
    license="Apache-2.0",
    grader="integer",
    fallbacks=("final_answer_phrase",),
    samples=16,
    groups=("aime",),
)
