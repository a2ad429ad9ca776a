"""HMMT, February and November 2025: two contests of 30 problems with closed-form answers."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="hmmt25",
    title="HMMT February and November 2025",
    hub=(
        HubSource("MathArena/hmmt_feb_2025", "train", "6fdc4277120810ff75aa22d2d5489b91f7a262a1", id_prefix="feb-"),
        HubSource("MathArena/hmmt_nov_2025", "train", "118dbfb45c4c9467c672268ed55166642897aa46", id_prefix="nov-"),
    ),
    count=60,
    license="CC-BY-NC-SA-4.0",
    grader="math",
    fallbacks=("final_answer_phrase",),
    samples=16,
)
