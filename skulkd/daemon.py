"""One process around one node: home, logs, event loop and signals.

SIGTERM, SIGINT and the end of the terminal (SIGHUP, unless it is ignored) stop the node within ten
seconds; a second SIGTERM or SIGINT ends the process at once, and its engines with it (the kernel
tells them that their parent is gone). SIGUSR1 writes the stacks of all tasks and threads into the
log; those of the threads also when the loop is stuck.
"""

import asyncio
import faulthandler
import logging
import os
import resource
import secrets
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import Final, final

from protocol.errors import ConfigError, SkulkError
from skulkd.api.certificate import check_certificate
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.settings_check import check_addresses
from skulkd.config import LoadedSettings, reloaded, with_found_port
from skulkd.node import Node
from skulkd.runtime import identity
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.garbage import look_seldom
from skulkd.runtime.home import Home, open_home, read_mounts
from skulkd.runtime.logs import Logs
from skulkd.runtime.service_manager import ServiceManager, manager_of
from skulkd.runtime.settings_file import read_settings_file
from skulkd.runtime.tasks import dump_story, run_blocking

_log = logging.getLogger(__name__)

EXIT_FORCED: Final = 128 + signal.SIGTERM
MAX_DESCRIPTORS: Final = 65_535
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def run_daemon(loaded: LoadedSettings) -> int:
    """Run a node until it is asked to stop or dies; returns the exit code.

    Raises:
        SkulkError: It could not start.
    """
    disk = RealDisk()
    home = open_home(disk, loaded.home, pid=os.getpid(), mounts=read_mounts())
    try:
        logs = Logs(directory=home.logs, level=_LEVELS[loaded.settings.log_level])
    except OSError as error:
        home.close()
        raise ConfigError(
            "config.home_unusable",
            f"the log in {home.logs} cannot be written: {error}",
            remediation="Give the files there to the user that runs skulkd, or move them away.",
            details={"errno": error.errno},
        ) from error
    try:
        for warning in loaded.warnings:
            _log.warning("%s", warning)
        _raise_descriptor_limit()
        return _run_loop(loaded, home, _load_identity(home))
    except SkulkError as error:
        # Also into the log: whoever looks for the cause later has no terminal to scroll back.
        _log.error("%s", error.message, extra={"code": error.code, "remedy": error.remediation})
        raise
    finally:
        logs.close()
        home.close()


def _run_loop(loaded: LoadedSettings, home: Home, who: identity.Identity) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(loaded, home, who))


async def _run(loaded: LoadedSettings, home: Home, who: identity.Identity) -> int:
    manager = manager_of(os.environ, pid=os.getpid())
    signals = _Signals(manager)
    signals.install()
    look_seldom()
    manager.start()
    try:
        while True:
            node = Node(loaded, home, who)
            signals.attend(node)
            exit_code = await node.run(on_ready=partial(_tell_ready, manager, node))
            if exit_code != 0 or not node.wants_restart or signals.is_stopping:
                return exit_code
            loaded = await run_blocking(_for_the_next_life, loaded, node.api_port)
            who = await run_blocking(_load_identity, home)
    finally:
        manager.stopping()
        manager.close()


def _tell_ready(manager: ServiceManager, node: Node) -> None:
    manager.ready(f"serving on port {node.api_port}" if node.api_port else "running without HTTP")


def _for_the_next_life(loaded: LoadedSettings, api_port: int) -> LoadedSettings:
    """Read the settings anew, and keep the port that clients know; the invitation has served."""
    try:
        fresh = reloaded(loaded, read_settings_file(loaded.home))
        check_addresses(fresh.settings)
        check_certificate(fresh.settings)
    except ConfigError as error:
        # Better the node of before than none: whoever asked for the restart may be far away.
        _log.error(
            "the settings stay as they were: %s", error.message,
            extra={"code": error.code, "remedy": error.remediation},
        )  # fmt: skip
        fresh = loaded
    logging.getLogger().setLevel(_LEVELS[fresh.settings.log_level])
    return replace(with_found_port(fresh, api_port), join_token=None, discard=False)


def _load_identity(home: Home) -> identity.Identity:
    return identity.load_or_create(
        RealDisk(), home.identity_file, make_keys=make_key_pair, entropy=secrets.token_bytes
    )


@final
class _Signals:
    """What a signal does to the node of the moment."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self._node: Node | None = None
        self.is_stopping = False

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._stop, "SIGINT")
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            loop.add_signal_handler(signal.SIGHUP, self._stop, "SIGHUP")
        loop.add_signal_handler(signal.SIGUSR1, self._dump)
        # Behind asyncio's handler, and in C: it speaks while the loop is stuck in a call.
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=True)

    def attend(self, node: Node) -> None:
        """Let signals reach this node from now on."""
        self._node = node
        if self.is_stopping:
            node.ask_stop()

    def _stop(self, name: str) -> None:
        if self.is_stopping and name == "SIGHUP":
            return  # both the kernel and the shell send one, and nobody pressed a key
        if self.is_stopping:
            _log.warning("second signal (%s): ending at once", name)
            logging.shutdown()
            os._exit(EXIT_FORCED)
        self.is_stopping = True
        self._manager.stopping()
        _log.info("%s: stopping; a second one ends the process at once", name)
        if self._node is not None:
            self._node.ask_stop()

    def _dump(self) -> None:
        _log.warning("stacks, as SIGUSR1 asked:\n%s", dump_story())


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
