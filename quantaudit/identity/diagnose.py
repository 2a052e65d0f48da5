"""Names the fault between a trainer and a server where no scheme alone explains what is served.

The trainer's side is made from the masters by a few schemes that it may have meant: those that the search came nearest
with, the one that the codes point to, and the catalogue's of the same format. For each of them every structural
mismatch says what it accounts for. The answer is the scheme and mismatch that leave the fewest values unexplained. A
large layer is not searched in full: `diagnose_large` draws rows first.

Two tensors of a layer may carry two faults. What explains one of them is reported of that one; the others are searched
again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quantaudit.core.identification import NamedMismatch
from quantaudit.core.scheme import Scheme
from quantaudit.identity.diagnose_large import LARGE, search_large
from quantaudit.identity.layer_pair import Pairs, count_values, fits, serve_layer, train_layer
from quantaudit.identity.mismatches.protocol import Finding, Projection
from quantaudit.identity.mismatches.registry import MISMATCHES, is_latent, search_mismatches
from quantaudit.identity.mismatches.scoring import num_differing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosed:
    """A scheme and the mismatch that turns what it gives into what is served.

    Attributes:
        scheme: What the trainer's side is quantized by.
        found: The mismatch that accounts for most.
        runner_up: The one that accounts for most otherwise, by the same scheme.
        is_convincing: Whether the mismatch accounts for at least half of what differs, or of one expert.
        projections: Those in which it does.
        experts: Experts that the mismatch touches, by projection.
        num_left: Values of the layer that scheme and mismatch together do not give.
        num_values: Values of the layer.
        apart: What explains single tensors, where the mismatch leaves others to be explained otherwise.
    """

    scheme: Scheme
    found: NamedMismatch
    runner_up: NamedMismatch | None
    is_convincing: bool
    projections: tuple[Projection, ...]
    experts: Mapping[Projection, tuple[int, ...]]
    num_left: int
    num_values: int
    apart: tuple[Diagnosed, ...] = ()

    def of(self, projection: Projection) -> Diagnosed | None:
        """Returns what is known of one tensor; `None` if that is nothing."""
        if not self.apart:
            return self if projection in self.projections or not self.is_convincing else None
        return next((part for part in self.apart if projection in part.projections), None)


def diagnose(pairs: Pairs, schemes: Iterable[Scheme]) -> Diagnosed | None:
    """Returns what explains a layer best; `None` if no mismatch accounts for anything.

    Args:
        pairs: The projections of a layer, or a single tensor.
        schemes: Schemes that the trainer may have meant, the likeliest first.
    """
    candidates = [scheme for scheme in schemes if fits(pairs, scheme)]
    num_values = count_values(pairs)
    if num_values >= LARGE:
        found = search_large(pairs, candidates)
        return None if found is None else _diagnosed(found.scheme, found.findings, num_values)
    best: Diagnosed | None = None
    for scheme in candidates:
        findings = _convincing_first(search_mismatches(train_layer(pairs, scheme), serve_layer(pairs)))
        if findings and (best is None or findings[0].num_left < best.num_left):
            best = _diagnosed(scheme, findings, num_values)
        if best is not None and best.num_left == 0:
            break
    return best


def diagnose_apart(pairs: Pairs, schemes: Sequence[Scheme]) -> Diagnosed | None:
    """Returns what explains a layer best, and where that is not all of its tensors, what explains each.

    Args:
        pairs: The projections of a layer, or a single tensor.
        schemes: Schemes that the trainer may have meant, the likeliest first.
    """
    found = diagnose(pairs, schemes)
    if found is None or not found.is_convincing or found.num_left == 0:
        return found
    others = {name: pair for name, pair in pairs.items() if name not in found.projections}
    others = {name: pair for name, pair in others.items() if _count_left({name: pair}, found.scheme)}
    if not others:
        return found
    mine = diagnose({name: pairs[name] for name in found.projections}, [found.scheme])
    rest = diagnose_apart(others, [found.scheme, *(scheme for scheme in schemes if scheme != found.scheme)])
    if mine is None or mine.found.mismatch != found.found.mismatch:
        return found
    parts = (mine,) if rest is None else (mine, *(rest.apart or (rest,)))
    num_left = found.num_left
    if rest is not None:
        num_left -= min(num_left, _count_left(others, found.scheme) - rest.num_left)
    return replace(found, num_left=num_left, apart=tuple(part for part in parts if part.is_convincing))


def _count_left(pairs: Pairs, scheme: Scheme) -> int:
    return num_differing(train_layer(pairs, scheme), serve_layer(pairs))


def find_latent(pairs: Pairs, scheme: Scheme) -> tuple[str, ...]:
    """Names the mismatches that would change no value of a layer, so that nobody can see whether they happened."""
    layer = train_layer(pairs, scheme)
    return tuple(mismatch.ABOUT.name for mismatch in MISMATCHES if is_latent(mismatch, layer))


def name_finding(finding: Finding) -> NamedMismatch:
    """Returns a finding as it is reported."""
    return NamedMismatch(
        kind=finding.about.kind.value,
        mismatch=finding.about.name,
        sentence=finding.about.sentence,
        field=finding.about.field,
        train=finding.train,
        serve=finding.serve,
        explains=finding.explains,
    )


def _convincing_first(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Puts what explains most of one expert before what explains a little everywhere, which chance does too."""
    return tuple(sorted(findings, key=lambda finding: not finding.is_convincing_somewhere))


def _diagnosed(scheme: Scheme, findings: tuple[Finding, ...], num_values: int) -> Diagnosed:
    return Diagnosed(
        scheme=scheme,
        found=name_finding(findings[0]),
        runner_up=name_finding(findings[1]) if len(findings) > 1 else None,
        is_convincing=findings[0].is_convincing_somewhere,
        projections=findings[0].convinces_in,
        experts=findings[0].experts,
        num_left=findings[0].num_left,
        num_values=num_values,
    )
