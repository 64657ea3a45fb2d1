"""The Hugging Face hub where it does not answer: one short question, no minutes of retries."""

from collections.abc import Callable

import datasets
import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

PATIENCE = 3.0  # seconds in which the hub must answer


def without_retries(ask: Callable) -> None:
    """Where the hub cannot be reached, let the libraries take what is on disk or fail at once.

    ask: HfApi().model_info or .dataset_info of the id that is wanted. The libraries themselves
    would ask again for half a minute, and wait without end for a proxy that does not answer.
    """
    try:
        ask(timeout=PATIENCE)
    except (HfHubHTTPError, ValueError):
        pass  # the hub has answered; whoever loads will report what
    except Exception:  # no name, no route, no answer of a proxy: all have their own classes
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
