"""GSM8K: grade-school word problems with one number as the answer."""

from vase_cli.tasks.base import HubSource, Task

TASK = Task(
    name="gsm8k",
    title="GSM8K, test split",
    hub=(HubSource("openai/gsm8k", "test", "740312add88f781978c0658806c59bc2815b9866", config="main"),),
    count=1_319,
    license="MIT",
    grader="number",
    fallbacks=("final_answer_phrase", "last_number"),
    samples=4,
    version=2,
    note="The paper's pilot used 500 problems; --limit 500 runs the first 500.",
)
