"""Every backend keeps the protocol: what it says of itself, what it takes and refuses, what its results look like."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.api import describe, list_entries
from quantaudit.backends import Backend, Origin, backend_names, listing, load_backend, registry
from quantaudit.backends import library as library_module
from quantaudit.backends.library import Code, LibraryBackend, caveat_of
from quantaudit.core.errors import InputError, MissingLibraryError, NotMeasuredError
from quantaudit.core.registry import Entry
from quantaudit.core.scheme import ExponentScale, LinearScale
from quantaudit.numerics import QuantizedTensor, get_scheme
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import INPUT_DTYPES

BUILT_IN = (
    "torchao",
    "torchao-qat",
    "bitsandbytes",
    "compressed-tensors",
    "gguf",
    "transformers",
    "modelopt",
    "conventions",
)
each_backend = pytest.mark.parametrize("name", BUILT_IN)


def installed(name: str) -> Backend:
    """Returns a backend, or skips where its library is not installed."""
    backend = load_backend(name)
    try:
        assert backend.version
    except MissingLibraryError as error:
        pytest.skip(str(error))
    return backend


def results(backend: Backend, weight: Tensor) -> list[tuple[str, QuantizedTensor]]:
    """Returns what each quantizer of a backend makes of a weight; those that only decode refuse it."""
    made = []
    for name, offer in backend.schemes().items():
        if weight.dtype in offer.dtypes:
            try:
                made.append((name, backend.quantize(weight, name)))
            except NotMeasuredError:
                continue
    return made


def test_the_names_are_these() -> None:
    assert backend_names() == BUILT_IN


@each_backend
def test_it_describes_itself(name: str) -> None:
    backend = load_backend(name)
    assert backend.name == name
    assert backend.origin is (Origin.RESTATED if name == "conventions" else Origin.LIBRARY)
    for key, offer in backend.schemes().items():
        assert key == offer.name and ":" not in key and " " not in key
        assert get_scheme(offer.catalogue) and offer.source
        assert offer.dtypes and set(offer.dtypes) <= set(INPUT_DTYPES)
        assert all(sentence.endswith(".") for sentence in offer.departs)
        assert len(set(offer.departs)) == len(offer.departs)


@each_backend
def test_every_offer_has_its_code(name: str) -> None:
    backend = installed(name)
    if isinstance(backend, LibraryBackend):
        assert backend._code.quantizers.keys() == backend.schemes().keys()
        assert all(backend.scheme_of(quantizer) for quantizer in backend.schemes())


@each_backend
@pytest.mark.parametrize("dtype", INPUT_DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(128, 256), (2, 128, 256)], ids=["matrix", "stack"])
def test_results_are_as_the_scheme_they_carry_lays_them_out(
    name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    backend = installed(name)
    weight = torch.randn(shape).to(dtype)
    before = weight.clone()
    for quantizer, q in results(backend, weight):
        assert q.shape == shape and q.dtype == dtype and q.codes.shape == shape
        assert q.scales.shape == plan(shape, q.scheme.granularity).grid, quantizer
        assert q.scheme.element.bits == get_scheme(backend.schemes()[quantizer].catalogue).element.bits
        rule = q.scheme.scale
        is_byte = isinstance(rule, ExponentScale) or rule.format.bits <= 8
        has_second = isinstance(rule, LinearScale) and rule.second_level is not None
        assert q.scales.dtype is (torch.uint8 if is_byte or q.offset is not None else torch.float32), quantizer
        assert (q.second_scales is not None) == has_second
        values = backend.dequantize(q)
        assert values.shape == shape and values.isfinite().all()
    assert torch.equal(weight, before)


@each_backend
def test_it_gives_the_same_again(name: str) -> None:
    backend = installed(name)
    weight = torch.randn(128, 256)
    for (_, first), (_, second) in zip(results(backend, weight), results(backend, weight), strict=True):
        assert torch.equal(first.codes, second.codes) and torch.equal(first.scales, second.scales)
        assert torch.equal(backend.dequantize(first), backend.dequantize(second))


@each_backend
def test_a_stack_needs_no_contiguous_memory_nor_a_gradient(name: str) -> None:
    backend = installed(name)
    weight = torch.randn(256, 128).T.requires_grad_()
    for (quantizer, strided), (_, dense) in zip(
        results(backend, weight), results(backend, weight.detach().contiguous()), strict=True
    ):
        assert torch.equal(strided.codes, dense.codes), quantizer
        assert not backend.dequantize(strided).requires_grad


@each_backend
def test_what_is_not_offered_is_refused(name: str) -> None:
    backend = installed(name)
    some = next(iter(backend.schemes()))
    with pytest.raises(InputError, match="no-such-thing"):
        backend.quantize(torch.ones(128, 256), "no-such-thing")
    with pytest.raises(InputError, match="float16"):
        backend.quantize(torch.ones(128, 256, dtype=torch.float16), some)
    for shape in ((256,), (0, 256), (1, 1, 128, 256)):
        with pytest.raises(InputError, match="shape"):
            backend.quantize(torch.ones(shape), some)


@pytest.mark.parametrize("name", ["torchao:mxfp4-evn", "torchao-qat:int4-32"])
def test_a_near_miss_names_the_nearest(name: str) -> None:
    backend, _, quantizer = name.partition(":")
    with pytest.raises(InputError, match="did you mean"):
        load_backend(backend).quantize(torch.ones(1, 32), quantizer)


def test_names_and_offers_cost_no_import_of_a_library() -> None:
    code = (
        "import sys; from quantaudit.backends import backend_names, load_backend\n"
        "for name in backend_names(): load_backend(name).schemes()\n"
        "libraries = {'torchao', 'bitsandbytes', 'gguf', 'transformers', 'compressed_tensors', 'modelopt'}\n"
        "print(libraries & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n" and ran.stderr == ""


def test_torchao_says_nothing_while_it_is_imported() -> None:
    code = (
        "import torch; from quantaudit.backends import load_backend\n"
        "load_backend('torchao').quantize(torch.ones(1, 32), 'mxfp4-even')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ran.stderr == ""


def a_backend(distribution: str = "torch", tested: str = "0.0.") -> LibraryBackend:
    offers = {name: replace(offer) for name, offer in load_backend("torchao").schemes().items()}
    return LibraryBackend(
        name="mine",
        distribution=distribution,
        tested=tested,
        offers=offers,
        open_code=lambda: Code(quantizers={}, dequantize=lambda q: q.codes),
    )


def test_a_version_that_was_not_tested_is_said_once_and_used() -> None:
    backend = a_backend()
    q = load_backend("torchao").quantize(torch.ones(1, 32), "mxfp4-even")
    with pytest.warns(UserWarning, match=r"torch 2.*tested with 0\.0\.\*"):
        backend.dequantize(q)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend.dequantize(q)


def test_a_version_that_was_not_tested_is_recorded() -> None:
    assert caveat_of(load_backend("torchao")) == "" == caveat_of(load_backend("conventions"))
    backend = a_backend()
    assert "tested with 0.0.*" in caveat_of(backend)
    entry = Entry(name="mine", package="quantaudit", version="0")
    assert listing._origin(entry, backend).endswith("(not tested)")


def test_a_library_that_is_not_installed_is_named_with_its_remedy() -> None:
    with pytest.raises(MissingLibraryError, match="pip install no-such-distribution"):
        a_backend("no-such-distribution").quantize(torch.ones(1, 32), "mxfp4-even")


def test_a_plug_in_is_adopted_if_it_keeps_the_protocol() -> None:
    backend = a_backend()
    assert registry._adopt("them/mine", backend)() is backend
    with pytest.raises(TypeError, match="not an instance"):
        registry._adopt("them/mine", LibraryBackend)
    with pytest.raises(TypeError, match="without name, origin, schemes"):
        registry._adopt("them/mine", 3)
    backend.origin = Origin.CATALOGUE
    with pytest.raises(TypeError, match="a library's or restated"):
        registry._adopt("them/mine", backend)


def test_every_quantizer_is_listed_by_the_name_that_certify_takes() -> None:
    listed = {entry.name: entry for entry in list_entries("backends")}
    for name in BUILT_IN:
        backend = load_backend(name)
        try:
            version = backend.version
        except MissingLibraryError as error:
            assert listed[name].error == str(error)
            continue
        for quantizer, offer in backend.schemes().items():
            entry = listed[f"{name}:{quantizer}"]
            assert offer.catalogue in entry.description and version in entry.origin
            assert ("restated" in entry.description) == (backend.origin is Origin.RESTATED)


def test_a_backend_is_shown_whole_or_one_quantizer_of_it() -> None:
    shown = json.loads(describe("backend", "torchao"))
    assert shown["version"].startswith("0.18.") and shown["origin"] == "library"
    offers = load_backend("torchao").schemes()
    assert list(shown["quantizers"]) == list(offers)
    one = json.loads(describe("backends", "torchao:nvfp4"))
    assert one["quantizers"] == {"nvfp4": shown["quantizers"]["nvfp4"]}
    assert one["quantizers"]["nvfp4"]["departs"] == list(offers["nvfp4"].departs)
    with pytest.raises(InputError, match="torchao:nvfp5"):
        describe("backend", "torchao:nvfp5")
    with pytest.raises(InputError, match="did you mean torchao"):
        describe("backend", "torchoa")


def test_quiet_restores_what_it_changed() -> None:
    before = logging.root.manager.disable
    with library_module._quiet():
        assert logging.root.manager.disable == logging.WARNING
    assert logging.root.manager.disable == before
