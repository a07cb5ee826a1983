"""The interface described for programs, as OpenAPI."""

from __future__ import annotations

from headswap.types import Table
from headswap.version import __version__

TEXTS: Table = {"type": "array", "items": {"type": "string"}, "minItems": 1}
BODIES: dict[str, Table] = {
    "classify": {"texts": TEXTS, "words": {"type": "boolean", "default": False}},
    "embed": {"texts": TEXTS},
    "translate": {
        "texts": TEXTS,
        "beam": {"type": "integer", "default": 4},
        "align": {"type": "boolean", "default": False},
    },
    "fill": {"text": {"type": "string"}, "most": {"type": "integer", "default": 5}},
    "generate": {
        "prompt": {"type": "string"},
        "length": {"type": "integer", "default": 50},
        "temperature": {"type": "number", "default": 0},
        "seed": {"type": "integer", "default": 0},
        "stream": {"type": "boolean", "default": False},
    },
    "attention": {"text": {"type": "string"}, "target": {"type": "string"}},
}
"""What may be sent, by what is asked for; the first field must be."""


def openapi() -> Table:
    """The interface, for programs."""
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    paths: Table = {
        path: {"get": {"responses": {"200": {"description": "done"}}}}
        for path in ("/healthz", "/metrics", "/v1/models")
    }
    for name, fields in BODIES.items():
        schema = {"type": "object", "properties": fields, "required": [next(iter(fields))]}
        paths[f"/v1/models/{{model}}/{name}"] = {
            "post": {
                "parameters": [model],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema}},
                },
                "responses": {
                    "200": {"description": "done"},
                    "4XX": {"description": "what is wrong, and what to send instead"},
                    "503": {"description": "too much is waiting; see Retry-After"},
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headswap", "version": __version__},
        "paths": paths,
    }
