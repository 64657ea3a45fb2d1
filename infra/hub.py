"""The Hugging Face hub where it does not answer: one short question, no minutes of retries."""

from collections.abc import Callable

import datasets
import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

PATIENCE = 3.0  # seconds in which the hub must answer


def asked_once(ask: Callable, *arguments, **named):
    """ask(*arguments, **named), or None where the hub does not have it or cannot be reached.

    ask: HfApi().model_info or .dataset_info. The libraries themselves would ask again for half a
    minute, and wait without end for a proxy that does not answer: where the hub is out of reach,
    they are told to take what is on disk, or to fail at once.
    """
    try:
        return ask(*arguments, **named, timeout=PATIENCE)
    except (HfHubHTTPError, ValueError):
        return None  # the hub has answered; whoever loads will report what
    except Exception:  # no name, no route, no answer of a proxy: all have their own classes
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
        return None
