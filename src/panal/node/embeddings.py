"""The embeddings answer: the engine's floats in the encoding that the client asked for. Pure."""

import base64
import struct
from typing import Any

import msgspec

from panal.core.errors import BadRequest, EngineFailed
from panal.node.engines.dialect import usage_of
from panal.node.engines.engine import Json
from panal.protocol.messages import TokenUsage

ENCODINGS = ("float", "base64")


def check_embeddings_request(body: Json) -> None:
    """Raises BadRequest for an unknown encoding or a wrong number of dimensions."""
    if body.get("encoding_format", "float") not in (*ENCODINGS, None):
        raise BadRequest("encoding_format must be 'float' or 'base64'", param="encoding_format")
    dimensions = body.get("dimensions")
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions < 1):
        raise BadRequest("dimensions must be a positive whole number", param="dimensions")


def embeddings_answer(answer: Json, body: Json, model: str) -> tuple[bytes, TokenUsage]:
    """The client's JSON and its usage.

    Raises BadRequest where the model cannot give the dimensions asked for, EngineFailed for an answer
    that holds no vectors.
    """
    rows = answer.get("data")
    if not isinstance(rows, list):
        raise EngineFailed("the engine's answer holds no embeddings")
    wanted = body.get("dimensions")
    encode = body.get("encoding_format") == "base64"
    for row in rows:
        vector = row.get("embedding") if isinstance(row, dict) else None
        if not isinstance(vector, list) or not vector:
            raise EngineFailed("the engine's answer holds no embeddings")
        if wanted is not None and len(vector) != wanted:
            raise BadRequest(
                f"this model makes vectors of {len(vector)} dimensions and cannot shorten them",
                param="dimensions",
            )
        if encode:
            row["embedding"] = as_base64(vector)
    raw = answer.get("usage")
    usage = usage_of(raw) if isinstance(raw, dict) else TokenUsage(estimated=True)
    answer["model"] = model
    answer.setdefault("object", "list")
    return msgspec.json.encode(answer), usage


def as_base64(vector: list[Any]) -> str:
    """Little-endian float32. Raises EngineFailed for anything but numbers."""
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (struct.error, OverflowError) as error:
        raise EngineFailed("the engine's embedding holds something that is no number") from error
