"""A node's transport in a process of its own: `python -m tests.support.transport_child`.

Reads one line (`KEY ADDRESS` of its peer), prints `KEY ADDRESS` of its own first, and then answers
every payload on its control plane with the same one.
"""

import asyncio
import sys

from protocol.ids import node_id_of
from skulkd.cluster.transport import Peer
from tests.support.real_transports import real_nodes


async def _main() -> None:
    async with real_nodes() as made:
        node = made.make()
        await node.open()
        transport = node.transport
        transport.on_receive(
            "control", lambda sender, payload: _answer(transport.send(sender, "control", payload))
        )
        sys.stdout.write(f"{node.keys.public_key.hex()} {node.address()}\n")
        sys.stdout.flush()
        line = await asyncio.to_thread(sys.stdin.readline)
        key, address = line.split()
        peer = Peer(
            node_id=node_id_of(bytes.fromhex(key)),
            public_key=bytes.fromhex(key),
            addresses=(address,),
        )
        transport.set_peers({peer.node_id: peer})
        await asyncio.to_thread(sys.stdin.readline)  # until its parent lets go of it


def _answer(refusal: str | None) -> None:
    if refusal is not None:
        sys.stderr.write(f"an answer was not taken: {refusal}\n")


if __name__ == "__main__":
    asyncio.run(_main())
