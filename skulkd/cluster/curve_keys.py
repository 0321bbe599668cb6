"""Makes CURVE keys. ZeroMQ is loaded only when one is made, not by importing this module."""

from skulkd.runtime.identity import KeyPair


def make_key_pair() -> KeyPair:
    """Make a new key pair, as raw bytes (ZeroMQ's own form is Z85 text)."""
    import zmq
    from zmq.utils import z85

    public_key, secret_key = zmq.curve_keypair()
    return KeyPair(public_key=z85.decode(public_key), secret_key=z85.decode(secret_key))


def public_key_of(secret_key: bytes) -> bytes:
    """Compute the public half of a secret key; any 32 bytes are one."""
    import zmq
    from zmq.utils import z85

    return z85.decode(zmq.curve_public(z85.encode(secret_key)))


def key_pair_of(secret_key: bytes) -> KeyPair:
    """Complete a secret key, such as that of an invitation."""
    return KeyPair(public_key=public_key_of(secret_key), secret_key=secret_key)
