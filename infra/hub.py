"""The Hugging Face hub, or the lack of it: whether it can be reached is found out once."""

import os
import socket
from functools import cache
from threading import Thread
from urllib.parse import urlparse
from urllib.request import getproxies

import datasets
import huggingface_hub

PATIENCE = 2.0  # seconds


@cache
def prepare_for_hub() -> None:
    """Without a network, let the libraries take what they have on disk, or fail at once.

    Otherwise each of them would try again for half a minute. Behind a proxy nothing is assumed.
    """
    if getproxies() or os.environ.get("HF_HUB_OFFLINE"):
        return
    answers = []
    knocking = Thread(target=knock, args=[answers], daemon=True)
    knocking.start()
    knocking.join(PATIENCE)  # in a thread: looking up a name may take longer than any timeout
    if not answers:
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True


def knock(answers: list) -> None:
    """Add an entry to `answers` if the hub's server takes a connection."""
    url = urlparse(huggingface_hub.constants.ENDPOINT)
    port = url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((url.hostname, port), timeout=PATIENCE).close()
    except OSError:
        return
    answers.append("it is there")
