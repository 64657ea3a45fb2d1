"""The Hugging Face hub, or the lack of it: whether it can be reached is found out once."""

from functools import cache

import datasets
import httpx
import huggingface_hub
from huggingface_hub.utils import get_session

PATIENCE = 2.5  # seconds


@cache
def find_out_whether_offline() -> bool:
    """True without a network: from now on the libraries take what they have on disk, or fail.

    Otherwise each of them would try again for half a minute.
    """
    try:
        get_session().head(huggingface_hub.constants.ENDPOINT, timeout=PATIENCE)
    except (httpx.HTTPError, OSError):
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
        return True
    return False
