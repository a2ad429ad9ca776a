"""GPQA Diamond: graduate-level science questions with four options."""

from vase_cli.tasks._rows import read_options
from vase_cli.tasks.base import BOXED_LETTER, HubSource, Task

TASK = Task(
    name="gpqa",
    title="GPQA Diamond",
    hub=(HubSource("Idavidrein/gpqa", "train", "633f5ee89ab8ad4522a9f850766b73f62147ffdd", config="gpqa_diamond"),),
    count=198,
    license="CC-BY-4.0",
    grader="choice",
    fallbacks=("final_answer_phrase",),
    samples=8,
    prompt_format=BOXED_LETTER,
    gated=True,
    note="The order of the options is drawn per problem from (seed, problem id) and kept in the record.",
    read=read_options,
)
