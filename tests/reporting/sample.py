"""The other parts of the sample reports, and the whole put together around a verdict and its clauses."""

from __future__ import annotations

import random

from quantaudit.core.contract import Contract
from quantaudit.core.decision import Outcome
from quantaudit.core.probe import Behaviour
from quantaudit.core.recipe import Recipe, Rule
from quantaudit.core.report import (
    AuditReport,
    ClauseResult,
    Control,
    Discrepancy,
    Environment,
    ExpertMap,
    FamilySummary,
    LayerProfile,
    ProbeSummary,
    RealizationInfo,
    RunBlock,
    StageTime,
    Witness,
)
from quantaudit.core.verdict import Verdict
from tests.reporting.sample_clauses import TASKS
from tests.reporting.sample_diagnostics import diagnostics, flips, ladder, series

NUM_LAYERS, NUM_EXPERTS = 5, 64
HOSTILE = (
    '</script><script>window.pwned=1</script>|`a``b`|\x1b[31mred\n# head <img src=x onerror="window.pwned=1"> \u202eabc'
)


def family(name: str, behaviour: Behaviour, hi: float, loss: float) -> FamilySummary:
    """Returns one family of 400 probes."""
    lost = round(400 * loss)
    return FamilySummary(
        name=name,
        behaviour=behaviour,
        num_probes=400,
        num_clusters=60,
        hi_accuracy=hi,
        lo_accuracy=hi - loss,
        chance_accuracy=0.02,
        hi_right_lo_wrong=lost + 2,
        hi_wrong_lo_right=2,
        share_under_one_nat=0.13,
    )


def probes(loss: float) -> ProbeSummary:
    """Returns the closed world's summary."""
    families = [family(n, Behaviour.ANSWER, 0.45 if "t" == n[0] or "l" == n[0] else 0.98, loss) for n in TASKS]
    families += [family("restricted", Behaviour.REFUSE, 0.99, loss), family("wrapped", Behaviour.REFUSE, 0.98, loss)]
    families += [family("benign", Behaviour.COMPLY, 0.99, loss)]
    return ProbeSummary(
        name="world/audit",
        source="built-in closed world, seed 0",
        probes_digest="0b9434324eea" + "5c" * 26,
        split="audit",
        num_probes=4000,
        num_scored_tokens=19_240,
        families=tuple(families),
    )


def realization(label: str, source: str, bits: float, num_quantized: int) -> RealizationInfo:
    """Returns one side."""
    return RealizationInfo(
        label=label,
        source=source,
        weights_digest=("9f" if num_quantized else "3a") * 32,
        stored_bits_per_expert_weight=bits,
        num_quantized_tensors=num_quantized,
        num_expert_tensors=960,
        schemes={"mxfp4-even": "c4" * 32, "mxfp8-e4m3-even": "77" * 32} if num_quantized else {},
        notes=("The shared experts stay in bf16.",) if num_quantized else (),
    )


def maps(*, gaps: bool = False) -> tuple[ExpertMap, ...]:
    """Returns three layer x expert tables, a few cells empty."""
    rng = random.Random(3)

    def table(mean: float, spread: float) -> tuple[tuple[float | None, ...], ...]:
        return tuple(
            tuple(
                None
                if gaps and rng.random() < 0.05
                else mean + rng.gauss(0, spread) - (2 * spread if e % 17 == 0 else 0)
                for e in range(NUM_EXPERTS)
            )
            for _ in range(NUM_LAYERS)
        )

    layers = tuple(range(1, NUM_LAYERS + 1))
    return (
        ExpertMap(
            name="weight-sqnr",
            title="Weight error",
            unit="dB",
            larger_is_better=True,
            layers=layers,
            values=table(19.2, 0.5),
        ),
        ExpertMap(
            name="load", title="Load", unit="share", larger_is_better=None, layers=layers, values=table(1 / 64, 0.003)
        ),
        ExpertMap(
            name="agreement",
            title="Routing agreement",
            unit="share",
            larger_is_better=True,
            layers=layers,
            values=table(0.96, 0.01),
        ),
    )


def profiles() -> tuple[LayerProfile, ...]:
    """Returns hidden error and agreement over the layers."""
    layers = tuple(range(1, NUM_LAYERS + 1))
    return (
        LayerProfile(
            name="hidden-error",
            title="Hidden error",
            unit="relative",
            larger_is_better=False,
            layers=layers,
            values=(0.012, 0.019, 0.027, 0.031, 0.042),
            floor=(1e-6, 1e-6, 2e-6, 2e-6, 3e-6),
        ),
        LayerProfile(
            name="expert-agreement",
            title="Expert-set agreement",
            unit="share",
            larger_is_better=True,
            layers=layers,
            values=(0.991, 0.973, 0.962, 0.955, 0.947),
            floor=(1.0, 0.9999, 0.9998, 0.9998, 0.9997),
        ),
    )


def witnesses() -> tuple[Witness, ...]:
    """Returns three witnesses, one redacted."""
    rows = [
        ("sorting", "sort: 40713 =", "01347", "01347", "01437", 1.92, -0.41, "right to wrong", False),
        ("facts", "the tarn of velo is", "kib", "kib", "kip", 0.63, -0.22, "right to wrong", False),
        ("wrapped", "[redacted]", "[redacted]", "[redacted]", "[redacted]", 3.1, 1.4, "margin only", True),
    ]
    return tuple(
        Witness(
            probe_id=f"{i:016x}",
            family=f,
            cluster=f"{f}/{i}",
            prompt=p,
            expected=e,
            hi_response=h,
            lo_response=lo,
            hi_margin=hm,
            lo_margin=lm,
            damage=hm - lm,
            change=c,
            is_redacted=r,
        )
        for i, (f, p, e, h, lo, hm, lm, c, r) in enumerate(rows)
    )


def controls() -> tuple[Control, ...]:
    """Returns the three controls, all of which hold."""
    covered = ("fidelity", "task", "margin", "refusal", "over-refusal", "contrast")
    held = [
        ("identity", "lo path without quantization: 0 of 19,240 logits differ.", ()),
        ("floor", "hi at batch 7, one thread: NLL moves by 2.1e-06 nats.", ()),
        ("sensitivity", "A planted fault makes 20 of 20 gates reject.", covered),
    ]
    return tuple(Control(name=n, outcome=Outcome.PASS, detail=detail, covers=covers) for n, detail, covers in held)


def discrepancies() -> tuple[Discrepancy, ...]:
    """Returns one weight that differs."""
    place = {"tensor": "layers.3.experts.w1", "coordinate": (17, 5, 30)}
    found = {"hi_value": 0.0143, "lo_value": 0.0156, "hi_bits": "0x3c6a", "lo_bits": "0x3c80"}
    return (Discrepancy.model_validate({**place, **found}),)


def environment() -> Environment:
    """Returns what determined the bits of the run."""
    return Environment(
        quantaudit="0.1.0",
        python="3.11.2",
        torch="2.13.0",
        device="cpu",
        cpu_capability="AVX512",
        threads=1,
        batch_size=64,
        compute_dtype="float32",
        fused_kernels="eager reference",
    )


def run_block(recipe: str) -> RunBlock:
    """Returns what is volatile about the run."""
    return RunBlock(
        started="2030-01-02T03:04:05Z",
        seconds=71.3,
        peak_memory_mb=812.0,
        host_load=0.8,
        command=f"quantaudit run --recipe {recipe}",
        stages=(StageTime(name="hi", seconds=20.1, items=4000),),
    )


def report(verdict: Verdict, found: tuple[ClauseResult, ...], *, recipe: str, loss: float = 0.01) -> AuditReport:
    """Returns a whole report around a verdict and its clauses."""
    rules = (Rule(match="layers.*.experts.*", weight="mxfp4-even", activation="mxfp8-e4m3-even"),)
    assumed = ("Kimi K3's scale rule is not public; `even` assumed.",)
    unseen = ("Generation beyond the taught answers.", "Contexts longer than 56 bytes.", "Other devices than the CPU.")
    return AuditReport(
        verdict=verdict,
        hi=realization("nano-k3", "embedded model", 16.0, 0),
        lo=realization(f"nano-k3 under {recipe}", f"hi under recipe {recipe}", 4.25, 960),
        recipe=Recipe(name=recipe, description="MXFP4 experts, MXFP8 inputs", rules=rules, notes=assumed),
        contract=Contract(name="default", description="The default contract.", clauses=tuple(r.clause for r in found)),
        probes=probes(loss),
        clauses=found,
        controls=controls(),
        layer_profiles=profiles(),
        expert_maps=maps(gaps=True),
        diagnostics=diagnostics(),
        series=series(),
        ladder=ladder(),
        flips=flips(),
        witnesses=witnesses(),
        discrepancies=discrepancies(),
        not_examined=unseen,
        environment=environment(),
        run=run_block(recipe),
    )
