"""Codings: how the parts of a stored matrix become its values, and where a box of it lies in memory. Torch only.

    mxfp4   codes U8 [R, C / 2], low nibble first;  scales U8 (E8M0) [R, C / 32]
    int4    codes I32 [R, C / 8], value + 8, low nibble first;  scales float [R, groups]
    fp8     codes E4M3 [R, C];  scales float [ceil(R / 128), ceil(C / 128)]
    plain   numbers, any float [R, C]

    value = value(code) * scale    in fp32

Shape suffixes: R rows, C columns, T tiles of either axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Parts: TypeAlias = Mapping[str, Tensor]
Decode: TypeAlias = Callable[[Parts], Tensor]  # from the parts of one matrix to its values, [R, C]

NUMBERS, CODES, SCALES = "numbers", "codes", "scales"
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SCALE_NAMES = {torch.uint8: "e8m0", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_FLOAT_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_MX_GROUP, _BLOCK, _WORD_CODES = 32, 128, 8


class Tile(NamedTuple):
    """Rows and columns that share a scale."""

    rows: int
    cols: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """A way to store a matrix.

    Attributes:
        label: What it is called in a manifest; `None` for plain numbers, which are called by their dtype.
        parts: Names of its parts.
        code_dtypes: Those that its codes may have.
        scale_dtypes: Those that its scales may have.
        codes_per_word: Codes in one element of the codes.
        decode: From parts to values, [R, C]; fp32 but for plain numbers.
        tile: From parts to what shares a scale.
    """

    label: str | None
    parts: tuple[str, ...] = (CODES, SCALES)
    code_dtypes: tuple[torch.dtype, ...] = ()
    scale_dtypes: tuple[torch.dtype, ...] = tuple(_FLOAT_NAMES)
    codes_per_word: int = 1
    decode: Decode
    tile: Callable[[Parts], Tile]


def is_coded(coding: Coding, parts: Parts) -> bool:
    """Returns whether the parts of a matrix are those of the coding, with one scale for every tile."""
    if set(parts) != set(coding.parts):
        return False
    if coding.label is None:
        return parts[NUMBERS].dtype in _FLOAT_NAMES
    codes, scales = parts[CODES], parts[SCALES]
    if codes.dtype not in coding.code_dtypes or scales.dtype not in coding.scale_dtypes:
        return False
    if codes.dim() != 2 or scales.dim() != 2 or not scales.numel():
        return False
    tile, num_cols = coding.tile(parts), codes.shape[1] * coding.codes_per_word
    return tuple(scales.shape) == (-(-codes.shape[0] // tile.rows), -(-num_cols // tile.cols))


def describe_parts(parts: Parts) -> str:
    """Returns dtypes and shapes for a message."""
    return ", ".join(f"{name} {str(p.dtype).removeprefix('torch.')} {list(p.shape)}" for name, p in parts.items())


def describe_storage(coding: Coding, parts: Parts) -> str:
    """Returns how a matrix is written, in the words of `quantaudit fingerprint`."""
    if coding.label is None:
        return _FLOAT_NAMES[parts[NUMBERS].dtype]
    tile = coding.tile(parts)
    return f"{coding.label}, {_SCALE_NAMES[parts[SCALES].dtype]} scale a {tile.rows} x {tile.cols} tile"


def _plain(parts: Parts) -> Tensor:
    return parts[NUMBERS]


def _mxfp4(parts: Parts) -> Tensor:
    packed = parts[CODES]
    codes_RC = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).to(torch.int64)
    magnitudes = torch.tensor(_E2M1, device=packed.device)
    values_RC = torch.cat((magnitudes, -magnitudes))[codes_RC]
    return values_RC * _e8m0(parts[SCALES]).repeat_interleave(_MX_GROUP, dim=-1)


def _e8m0(codes: Tensor) -> Tensor:
    """Returns 2^(code - 127), for 0 the subnormal 2^-127, for 255 NaN: the code is the exponent field of an fp32."""
    wide = codes.to(torch.int32)
    bits = torch.where(wide == 0, 1 << 22, wide << 23)
    return torch.where(wide == 255, torch.nan, bits.view(torch.float32))


def _int4(parts: Parts) -> Tensor:
    words = parts[CODES]
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    codes_RC = ((words.unsqueeze(-1) >> shifts) & 0xF).flatten(-2) - _WORD_CODES
    return codes_RC.float() * parts[SCALES].float().repeat_interleave(_int4_tile(parts).cols, dim=-1)


def _int4_tile(parts: Parts) -> Tile:
    return Tile(1, parts[CODES].shape[-1] * _WORD_CODES // parts[SCALES].shape[-1])


def _fp8(parts: Parts) -> Tensor:
    values_RC = parts[CODES].view(torch.float8_e4m3fn).float()
    scales_TT = parts[SCALES].float()
    scales_RC = scales_TT.repeat_interleave(_BLOCK, dim=0).repeat_interleave(_BLOCK, dim=1)
    return values_RC * scales_RC[: values_RC.shape[0], : values_RC.shape[1]]


CODINGS = {
    "plain": Coding(label=None, parts=(NUMBERS,), decode=_plain, tile=lambda parts: Tile(1, 1)),
    "mxfp4": Coding(
        label="mxfp4, low-nibble-first",
        code_dtypes=(torch.uint8,),
        scale_dtypes=(torch.uint8,),
        codes_per_word=2,
        decode=_mxfp4,
        tile=lambda parts: Tile(1, _MX_GROUP),
    ),
    "int4": Coding(
        label="int4, int32-words",
        code_dtypes=(torch.int32,),
        codes_per_word=_WORD_CODES,
        decode=_int4,
        tile=_int4_tile,
    ),
    "fp8": Coding(
        label="fp8, bytes",
        code_dtypes=(torch.uint8, torch.float8_e4m3fn),
        decode=_fp8,
        tile=lambda parts: Tile(_BLOCK, _BLOCK),
    ),
}
