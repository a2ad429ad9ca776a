"""AIME 2026, I and II: every answer is an integer from 0 to 999."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="aime26",
    title="AIME 2026 I and II",
    hub=(HubSource("math-ai/aime26", "test", "79037aebdb6580008fb960d17cb21fd3099083e3"),),
    count=30,
    license="Apache-2.0",
    grader="integer",
    fallbacks=("final_answer_phrase",),
    samples=16,
    groups=("aime",),
)
