"""OlympiadBench: its open-ended, text-only, English competition mathematics."""

from vase_cli.tasks._rows import read_final_answer
from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="olympiadbench",
    title="OlympiadBench, OE_TO_maths_en_COMP",
    hub=(
        HubSource("Hothan/OlympiadBench", "train", "91184b52131e7fc9455fef848035173aea8cc01a", "OE_TO_maths_en_COMP"),
    ),
    count=674,
    license="Apache-2.0",
    grader="math",
    fallbacks=("final_answer_phrase",),
    samples=4,
    note="Several final answers of one problem are graded as one list.",
    read=read_final_answer,
)
