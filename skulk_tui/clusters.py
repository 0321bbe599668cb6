"""The clusters that the operator has saved, as the terminal interface offers them.

Reading them needs no network: another one can be chosen while the one in front is out of reach.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import final

from skulk_tui.profiles import ClientConfig, read_config
from skulk_tui.target import Target, resolve_target


@final
class SavedClusters:
    """The operator's `config.toml`.

    Args:
        environ: Where keys may come from, as for every verb.
        config_dir: Where the file and the keys lie.
    """

    def __init__(self, environ: Mapping[str, str], config_dir: Path) -> None:
        self._environ = environ
        self._config_dir = config_dir
        self._config = ClientConfig()

    def read(self) -> None:
        """Read the file anew; blocking.

        Raises:
            ClientError: `client.usage`: it is there, and cannot be read.
        """
        self._config = read_config(self._config_dir)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, as they were when the file was read last."""
        return tuple(sorted(self._config.profile))

    def seeds(self, name: str) -> tuple[str, ...]:
        """Give where the nodes of one answer; nothing for an unknown one."""
        profile = self._config.profile.get(name)
        return () if profile is None else profile.seeds

    def target(self, name: str) -> Target:
        """Give the addresses and the key of one; blocking.

        Raises:
            ClientError: `client.usage`: there is none of that name, or its key cannot be read.
        """
        return resolve_target(None, self._environ, config_dir=self._config_dir, cluster=name)
