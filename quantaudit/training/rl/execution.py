"""How an engine computes, as it declares it: everything that decides its bits apart from the weights.

Whoever runs the same weights under the same execution, in whatever process, gets the same bits on the same machine.
That is what the canary of every step is compared by.
"""

from __future__ import annotations

from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.serial import Frozen


class EngineExecution(Frozen):
    """An execution.

    Attributes:
        dtype: Dtype of everything that is not widened.
        activations: Name of the scheme of the input, by module name (`layers.3.experts.w1`); others keep theirs.
        router: Dtype in which the routers' products are taken.
        state: Dtype in which KDA states are kept between calls.
        latent: Dtype in which MLA latents are kept between calls.
        max_batch: Sequences that go through the model together; the others wait.
    """

    dtype: ComputeDtype = ComputeDtype.FLOAT32
    activations: dict[str, str] = {}
    router: ComputeDtype = ComputeDtype.FLOAT32
    state: ComputeDtype = ComputeDtype.FLOAT32
    latent: ComputeDtype = ComputeDtype.FLOAT32
    max_batch: int = 256

    def in_words(self) -> str:
        """Returns one line for logs."""
        schemes = ", ".join(sorted(set(self.activations.values()))) or "none"
        return (
            f"compute {self.dtype}, activations {schemes}, router {self.router}, KDA state {self.state}, "
            f"latents {self.latent}, at most {self.max_batch} sequences together"
        )
