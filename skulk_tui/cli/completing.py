"""Names for the shell's Tab: what a node knows now, else what it knew; never an error.

Somebody who pressed Tab waits 300 ms for a node at most. What it said is kept in a file, good at
once for ten seconds, and for a day where no node answers in time.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, cast

import typer
from pydantic import TypeAdapter, ValidationError

from protocol.errors import SkulkError
from skulk_tui.cli.session import Options, Session, system_session
from skulk_tui.own_files import read_text, replace_file, state_dir

BUDGET: Final = "300ms"
FRESH_MS: Final = 10_000
STALE_MS: Final = 86_400_000
MAX_BYTES: Final = 4 << 20
"""Of the file; a larger one is begun anew."""
MAX_ADDRESSES: Final = 16
_FILE: Final = "names.json"


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What one address has told."""

    state_ms: int = 0
    nodes: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    models_ms: int = 0
    models: tuple[str, ...] = ()


@cache
def _adapter() -> TypeAdapter[dict[str, _Known]]:
    return TypeAdapter[dict[str, _Known]](dict[str, _Known])


# ---- What an argument completes to ---------------------------------------------------------------


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Complete to words that are always the same; of a list with commas, to the last one."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last)]

    return complete


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the names of nodes that begin so; of a list with commas, the last one is completed."""
    before, comma, last = incomplete.rpartition(",")
    names = _beginning(_of_state(ctx).nodes, last)
    return [f"{before}{comma}{name}" for name in names]


def complete_node_or_instance(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the nodes, instances and placed models that begin so."""
    known = _of_state(ctx)
    return _beginning([*known.nodes, *known.instances, *known.placed], incomplete)


def complete_instance_or_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the instances and placed models that begin so."""
    known = _of_state(ctx)
    return _beginning([*known.instances, *known.placed], incomplete)


def complete_placed_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the placed models that begin so."""
    return _beginning(_of_state(ctx).placed, incomplete)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the models of the catalogue that begin so."""
    known = _known(ctx, is_fresh=lambda one, now_ms: now_ms - one.models_ms < FRESH_MS, ask=_models)
    return _beginning(known.models, incomplete)


def complete_cluster(incomplete: str) -> list[str]:
    """Give the saved clusters that begin so; asks no node."""
    from skulk_tui.profiles import read_config

    session = system_session(Options())
    with contextlib.suppress(SkulkError):
        return _beginning(read_config(session.config_dir).profile, incomplete)
    return []


def _beginning(words: Iterable[str], start: str) -> list[str]:
    return sorted({word for word in words if word.startswith(start)})


# ---- What is known -------------------------------------------------------------------------------


def _of_state(ctx: typer.Context) -> _Known:
    return _known(ctx, is_fresh=lambda one, now_ms: now_ms - one.state_ms < FRESH_MS, ask=_state)


def _state(session: Session, known: _Known) -> _Known:
    from protocol.control_api import StateDocument

    state = session.client.get("/state", StateDocument)
    return replace(
        known,
        state_ms=session.clock.wall_ms(),
        nodes=tuple(member.name for member in state.members.values()),
        instances=tuple(state.instances),
        placed=tuple({view.model_id for view in state.instances.values()}),
    )


def _models(session: Session, known: _Known) -> _Known:
    from protocol.models_api import ModelList

    models = tuple(entry.id for entry in session.client.get("/v1/models", ModelList).data)
    return replace(known, models_ms=session.clock.wall_ms(), models=models)


def _known(
    ctx: typer.Context,
    *,
    is_fresh: Callable[[_Known, int], bool],
    ask: Callable[[Session, _Known], _Known],
) -> _Known:
    session = system_session(_options(ctx))
    path = state_dir(session.environ) / _FILE
    try:
        url = session.target.url
    except SkulkError:
        return _Known()  # a shell has no place for an error
    kept = _read(path)
    now_ms = session.clock.wall_ms()
    known = kept.get(url, _Known())
    if is_fresh(known, now_ms):
        return known
    if now_ms - max(known.state_ms, known.models_ms) > STALE_MS:
        known = _Known()
    _load()
    session = system_session(_options(ctx))  # whose budget begins now
    try:
        asked = ask(session, known)
    except SkulkError:
        return known
    finally:
        session.close()
    _keep(path, {**kept, url: asked})
    return asked


def _load() -> None:
    """Load what asking takes: on a busy machine that alone is longer than a node may take."""
    for module in ("httpx", "protocol.control_api"):
        import_module(module)


def _options(ctx: typer.Context) -> Options:
    """Read whom the line so far names, whether before the verb or after it."""
    given = Options(timeout=BUDGET)
    at: typer.Context | None = ctx
    while at is not None:
        words = cast("dict[str, object]", at.params)
        node, cluster = words.get("node"), words.get("cluster")
        outer = Options(
            node=node if isinstance(node, str) else None,
            cluster=cluster if isinstance(cluster, str) else None,
            insecure=words.get("insecure") is True,
        )
        given = given.over(outer)
        at = cast("typer.Context | None", at.parent)
    return given


def _read(path: Path) -> dict[str, _Known]:
    with contextlib.suppress(SkulkError, ValidationError):
        text = read_text(path, max_bytes=MAX_BYTES)
        return {} if text is None else _adapter().validate_json(text)
    return {}


def _keep(path: Path, kept: dict[str, _Known]) -> None:
    newest = sorted(kept.items(), key=lambda item: -max(item[1].state_ms, item[1].models_ms))
    with contextlib.suppress(SkulkError):  # a disk that takes nothing costs only time
        replace_file(path, _adapter().dump_json(dict(newest[:MAX_ADDRESSES])).decode())
