"""Which engines can do what a request needs: what one would pass over in silence is refused."""

from functools import cache

from engines.base import Feature
from engines.registry import engine_names, engine_of
from protocol.cards import EngineName
from protocol.errors import RequestError
from protocol.instances import Instance


def holding_to_form(candidates: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """Keep the instances whose engine has a grammar that holds an answer to its form.

    Raises:
        RequestError: `request.unsupported_field` where none has, naming the engines.
    """
    able = tuple(item for item in candidates if _may(item.plan.engine, "grammar"))
    if able:
        return able
    engines = ", ".join(sorted({item.plan.engine for item in candidates}))
    raise RequestError(
        "request.unsupported_field",
        f"the form of the answer cannot be enforced: {candidates[0].model_id} runs on the engine "
        f"{engines}, which has no grammar",
        remediation="Ask for text, or place the model on an engine that has one: llama_server.",
        details={"param": "response_format"},
    )


def _may(engine: EngineName, feature: Feature) -> bool:
    """Say whether an engine has a feature; of one that a newer node runs, that node knows."""
    return engine not in engine_names() or feature in _features(engine)


@cache
def _features(engine: EngineName) -> frozenset[Feature]:
    return engine_of(engine).describe().features
