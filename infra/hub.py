"""The Hugging Face hub, for models and data sets."""

import datasets
import huggingface_hub


def prefer_cache() -> None:
    """If the hub cannot be reached, use files on disk or fail at once, instead of retrying."""
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=3)
    except Exception:  # DNS, routing and proxy errors have different classes
        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
