"""This node's settings and its restart, behind the API's `NodeAdmin` port.

Settings are taken up when a node starts: what is written here is checked as it is then, and holds
from the next start on. Those of `LIVE_KEYS` hold at once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, final

from protocol.admin_api import NodeConfig, SettingValue, SettingView
from protocol.errors import ClusterError, ConfigError
from skulkd.api.certificate import check_certificate
from skulkd.cluster.settings_check import check_addresses
from skulkd.config import (
    SETTINGS_FILE,
    LoadedSettings,
    Settings,
    read_document,
    reloaded,
    typed_value,
)
from skulkd.runtime.disk import Disk
from skulkd.runtime.settings_file import edited, read_settings_file
from skulkd.runtime.tasks import Tasks, run_blocking, sleep

_log = logging.getLogger(__name__)

LIVE_KEYS: Final = ("transfer_rate_mb_s",)
"""Settings that a running node takes up as they are changed."""
ANSWER_S: Final = 0.2
"""What the answer to the operator may take to leave before the rooms end."""
_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@final
class LocalAdmin:
    """Implements `NodeAdmin`.

    Args:
        loaded: The settings that this node runs with.
        disk: Where its home is.
        tasks: Of the node.
        restart: Ends the rooms of the node in order to begin anew.
        take_up: Has settings of `LIVE_KEYS` hold from now on.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        disk: Disk,
        tasks: Tasks,
        restart: Callable[[], None],
        take_up: Callable[[Settings], None],
    ) -> None:
        self._take_up = take_up
        self._loaded = loaded
        self._path = loaded.home / SETTINGS_FILE
        self._disk = disk
        self._tasks = tasks
        self._restart = restart
        self._writing = asyncio.Lock()
        self._is_restarting = False

    async def config(self) -> NodeConfig:
        """Show the settings.

        Raises:
            ConfigError: `config.invalid`; the file cannot be read.
        """
        return self._shown(await run_blocking(read_settings_file, self._loaded.home))

    async def configure(
        self, changes: Mapping[str, SettingValue | None], *, dry_run: bool
    ) -> NodeConfig:
        """Change the settings file, once what it would say has been checked as at a start.

        Raises:
            ConfigError: `config.unknown_key`, `config.invalid`, `config.tls_unusable`; nothing
                has changed then.
        """
        async with self._writing:
            before = await run_blocking(read_settings_file, self._loaded.home)
            typed = {
                key: None if value is None else _value(typed_value(key, value, self._path))
                for key, value in changes.items()
            }
            after = edited(before or "", typed, self._path)
            wanted = reloaded(self._loaded, after).settings
            check_addresses(wanted)
            await run_blocking(check_certificate, wanted)
            if not dry_run and after != (before or ""):
                await run_blocking(self._write, after)
                _log.info("settings changed by command: %s", ", ".join(sorted(changes)))
                self._take_up_live(after)
        return self._shown(after)

    def restart(self) -> None:
        """Begin anew, after the answer has had a moment to leave.

        Raises:
            ClusterError: `cluster.restart_pending`.
        """
        if self._is_restarting:
            raise ClusterError(
                "cluster.restart_pending",
                "this node is restarting already",
                remediation="Wait until `skulk status` shows it again.",
                retry_after_s=2,
            )
        self._is_restarting = True
        self._tasks.start(self._restart_soon(), name="restart")

    async def _restart_soon(self) -> None:
        await sleep(ANSWER_S)
        _log.info("restarting by command")
        self._restart()

    def _write(self, text: str) -> None:
        try:
            self._disk.replace(self._path, text.encode())
        except OSError as error:
            raise ConfigError(
                "config.home_unusable",
                f"{self._path} cannot be written: {error}",
                remediation="Free space there, or give the file to the user that runs skulkd.",
                details={"errno": error.errno},
            ) from error

    def _take_up_live(self, text: str) -> None:
        """Have what can change while the node runs hold from now on, by the usual precedence."""
        wanted = reloaded(self._loaded, text)
        changed = {key: getattr(wanted.settings, key) for key in LIVE_KEYS}
        sources = {key: said for key, said in self._loaded.sources.items() if key not in LIVE_KEYS}
        sources |= {key: said for key, said in wanted.sources.items() if key in LIVE_KEYS}
        settings = self._loaded.settings.model_copy(update=changed)
        self._loaded = replace(self._loaded, settings=settings, sources=sources)
        self._take_up(settings)

    def _shown(self, text: str | None) -> NodeConfig:
        running = _plain(self._loaded.settings)
        in_file = read_document(text, self._path) if text else {}
        kept = {key: value for key, value in in_file.items() if key in Settings.model_fields}
        wanted = _plain(reloaded(self._loaded, text).settings)
        if self._loaded.api_was_chosen:
            wanted["api"] = running["api"]  # 0 picks a port once, and the node keeps it
        return NodeConfig(
            path=str(self._path),
            effective={
                key: SettingView(value=value, source=self._loaded.sources.get(key, "default"))
                for key, value in running.items()
            },
            file={key: _value(value) for key, value in kept.items()},
            pending=tuple(sorted(key for key in running if running[key] != wanted[key])),
            has_hf_token="hf_token" in in_file
            or any(self._loaded.environment.get(name) for name in _TOKENS),
        )


def _plain(settings: Settings) -> dict[str, SettingValue | None]:
    shown = settings.model_dump(mode="json")
    return {key: _value(value) for key, value in shown.items()}


def _value(value: object) -> SettingValue | None:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(str, value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - YAML is untyped
    return str(value)
