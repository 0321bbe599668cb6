"""At a start: makes the cluster that has admitted this node its own, and puts the old one aside.

The choice to change is kept before anything is touched, and each step may be repeated, so that a
crash between any two of them is finished by the next start.
"""

import logging
from contextlib import suppress
from pathlib import Path

from protocol.errors import ConfigError
from protocol.ids import ClusterId
from skulkd.eventlog.journal_archive import archive_journal
from skulkd.runtime.disk import Disk
from skulkd.runtime.identity import Identity, adopt_cluster

_log = logging.getLogger(__name__)


def change_cluster(
    disk: Disk,
    identity: Identity,
    cluster_id: ClusterId,
    *,
    identity_file: Path,
    journal: Path,
    term_file: Path,
) -> Identity:
    """Let a node belong to a cluster that has admitted it. Blocks; idempotent.

    It may be the one that it belongs to already: whoever was removed while nobody told it so joins
    again, without the log that it had. What it promised in elections there still holds.

    Args:
        disk: Where its home lies.
        identity: As it is.
        cluster_id: Of the cluster that is to be its own.
        identity_file: Where the identity is kept.
        journal: The directory of the old cluster's journal; put aside.
        term_file: What was promised in the old cluster's elections; means nothing in the new one.

    Raises:
        ConfigError: `config.home_unusable`; the next start tries again.
    """
    try:
        aside = archive_journal(disk, journal)
        if identity.cluster_id != cluster_id:
            with suppress(FileNotFoundError):
                disk.remove(term_file)
    except OSError as error:
        raise ConfigError(
            "config.home_unusable",
            f"the journal in {journal} cannot be put aside: {error.strerror or error}",
            remediation="Make room in the home, and see that this user may write there.",
            details={"file": str(journal), "errno": error.errno},
        ) from error
    if aside is not None:
        _log.info("the journal of cluster %s lies in %s now", identity.cluster_id, aside)
    if identity.cluster_id == cluster_id:
        return identity
    return adopt_cluster(disk, identity_file, identity, cluster_id)
