"""Prompts on their way into rows: a pack of them, computed some layers at a time between decode steps.

Shapes: T tokens of a pack, P prompts, V vocabulary, L layers.
"""

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend, PromptPack, upload
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.cut import CutSubject, Cutter
from vase_cli.engine.decoding import PendingOutput, SlotState
from vase_cli.engine.plan import EngineSettings
from vase_cli.engine.sampling import sample
from vase_cli.engine.scheduler import Scheduler
from vase_cli.engine.sequence import Sequence
from vase_cli.engine.steps import PrefillStep
from vase_cli.engine.timing import Mark, mark
from vase_cli.errors import ConfigError
from vase_cli.models.language_model import LanguageModel


def next_pack(
    scheduler: Scheduler, settings: EngineSettings, shape: CacheShape, most_tokens: int
) -> tuple[list[Sequence], list[tuple[Sequence, ConfigError]]]:
    """Give rows that are free to the next requests, of up to so many tokens together, or to a single longer one.

    Returns their sequences, and those that are refused, with what is wrong with them.
    """
    pack: list[Sequence] = []
    refused: list[tuple[Sequence, ConfigError]] = []
    tokens = 0
    for sequence in scheduler.schedule():
        try:
            settings.check_prompt(sequence.prompt_tokens)
            shape.check(settings.row_need(sequence.request))
        except ConfigError as error:
            refused.append((sequence, error))
            continue
        tokens += sequence.prompt_tokens
        if pack and tokens > most_tokens:
            break
        scheduler.start(sequence)
        sequence.status = "prefill"
        pack.append(sequence)
    return pack, refused


class Prefill:
    """A pack of prompts on its way through the model into its rows, which are idle until it is through.

    Attributes:
        sequences: of its prompts.
        pack: where each prompt is among the tokens.
        rows: (P,) int64, on the device.
        marks: start and end of each part of the work so far.
        logits: (P, V), of the last token of each; None until all layers are computed.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: StaticCache,
        backend: AttentionBackend,
        cutter: Cutter | None,
        sequences: SequenceOf[Sequence],
    ) -> None:
        """Make the rows ready; nothing is computed yet."""
        self.sequences = tuple(sequences)
        self.pack = PromptPack([sequence.prompt_tokens for sequence in sequences], model.device)
        self.rows = upload([sequence.row for sequence in sequences], model.device)
        self.marks: list[tuple[Mark, Mark]] = []
        self._device = model.device
        self._ops = cache.ops
        self._layers_left = cache.shape.layers
        subjects = [CutSubject(seq.row, seq.eviction_key, seq.prompt_tokens, seq.prompt_tokens) for seq in sequences]
        self._step = PrefillStep(cache, backend, cutter, subjects, self.pack)
        self._token_ids = upload([token for seq in sequences for token in seq.request.prompt_token_ids], model.device)
        self._forward = model.prefill(self._token_ids, self.pack, self._step)
        self.logits: Tensor | None = None
        cache.reset(self.rows)

    def advance(self, token_layers: int | None) -> int:
        """Compute layers for so many tokens times layers, at least one, or all; how many of those it were."""
        tokens, layers = self.pack.bounds[-1], self._layers_left
        if token_layers is not None:
            layers = min(layers, max(1, token_layers // tokens))
        self._layers_left -= layers
        start = mark(self._device)
        try:
            # A forward that is through its layers ends when it is asked once more; one without pauses ends at once.
            for _ in range(layers + (self._layers_left == 0)):
                next(self._forward)
        except StopIteration as end:
            self.logits = end.value
            layers, self._layers_left = layers + self._layers_left, 0
        self.marks.append((start, mark(self._device)))
        return layers * tokens

    def draw(self, sampling: SamplingParams, token_keys: Tensor, state: SlotState) -> PendingOutput:
        """Draw the first token of each text, with (P,) int64 stream keys, and put it where the next step reads it."""
        assert self.logits is not None
        positions = upload([sequence.prompt_tokens for sequence in self.sequences], self._device)
        drawn: list[tuple[Tensor, Tensor]] = []
        # Without kernels, what a draw makes is as wide as the vocabulary: then it is made for one row at a time.
        together = state.seen is None and self._ops.has_kernels
        for sequence, span in zip(self.sequences, self.pack.spans(), strict=True):
            row = slice(None) if together else slice(len(drawn), len(drawn) + 1)
            seen = state.see_prompt(sequence.row, self._token_ids[span])
            token, finite = sample(self.logits[row], sampling, token_keys[row], positions[row], self._ops, seen)
            if seen is not None:
                seen.scatter_(1, token[:, None], True)
            drawn.append((token, finite.long()))
            if together:
                break
        tokens, finite = (parts[0] if len(drawn) == 1 else torch.cat(parts) for parts in zip(*drawn, strict=True))
        state.tokens.index_copy_(0, self.rows, tokens)
        state.token_keys.index_copy_(0, self.rows, token_keys)
        return PendingOutput(tokens, finite, self._step.bad_layers())
