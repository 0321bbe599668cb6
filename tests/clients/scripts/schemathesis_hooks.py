# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

import os

import schemathesis

MODELS = tuple(os.environ["SKULK_TEST_MODELS_ASKED"].split(","))


@schemathesis.hook
def map_body(context, body):
    """Ask models that are there: whatever chance calls one ends in a 404."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = MODELS[len(body["model"]) % len(MODELS)]
    return body
