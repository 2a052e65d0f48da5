"""Where experts live: logical expert e sits in a slot of a shard, as expert parallelism deals them out."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Frozen


class Placement(Frozen):
    """The physical place of every logical expert.

    Attributes:
        num_shards: Shards; each holds the same number of experts.
        place: Physical index of every logical expert; shard = index // experts a shard, slot = the rest.
    """

    num_shards: int
    place: tuple[int, ...]

    @model_validator(mode="after")
    def _is_permutation(self) -> Self:
        if sorted(self.place) != list(range(len(self.place))) or len(self.place) % self.num_shards:
            raise ValueError(f"{self.num_shards} shards cannot hold the experts at {list(self.place)[:8]}...")
        return self

    @property
    def per_shard(self) -> int:
        """Returns the experts a shard."""
        return len(self.place) // self.num_shards

    def experts_of(self, shard: int) -> list[int]:
        """Returns the logical experts of a shard in the order of its slots."""
        owner = {place: expert for expert, place in enumerate(self.place)}
        return [owner[shard * self.per_shard + slot] for slot in range(self.per_shard)]


def deal_experts(num_experts: int, num_shards: int) -> Placement:
    """Places experts round robin: expert e on shard e mod the number of shards.

    Raises:
        InputError: If the shards do not divide the experts.
    """
    if num_shards < 1 or num_experts % num_shards:
        raise InputError(
            f"{num_shards} shards for {num_experts} experts",
            expected="a number of shards that divides the experts",
            fix="choose another number of shards",
        )
    per_shard = num_experts // num_shards
    place = tuple(expert % num_shards * per_shard + expert // num_shards for expert in range(num_experts))
    return Placement(num_shards=num_shards, place=place)
