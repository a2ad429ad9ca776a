"""AIME 2024, I and II: every answer is an integer from 0 to 999."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="aime24",
    title="AIME 2024 I and II",
    hub=(HubSource("HuggingFaceH4/aime_2024", "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a"),),
    count=30,
    license="none stated on the hub",
    grader="integer",
    fallbacks=("final_answer_phrase",),
    samples=16,
    groups=("aime",),
)
