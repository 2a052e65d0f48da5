"""Prompts and responses as token sequences: BOS, prompt, response, EOS; the response and EOS are scored."""

from __future__ import annotations

from quantaudit.core.batch import Sequence
from quantaudit.probes.tokenizer import BOS, EOS, encode


def encode_pair(prompt: str, response: str) -> Sequence:
    """Returns the teacher-forced sequence of a prompt and a response."""
    head = [BOS, *encode(prompt)]
    return Sequence(tokens=(*head, *encode(response), EOS), scored_from=len(head))
