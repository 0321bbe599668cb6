"""Makes CURVE keys. ZeroMQ is loaded only when one must be made: once in a node's life."""

from skulkd.runtime.identity import KeyPair


def make_key_pair() -> KeyPair:
    """Make a new key pair, as raw bytes (ZeroMQ's own form is Z85 text)."""
    import zmq
    from zmq.utils import z85

    public_key, secret_key = zmq.curve_keypair()
    return KeyPair(public_key=z85.decode(public_key), secret_key=z85.decode(secret_key))
