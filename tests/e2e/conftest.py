"""Fixtures of the tests that run the real engine."""

from pathlib import Path

import pytest

from services.cli.model_progress import store_progress
from services.cli.model_store import ModelStore
from services.cli.paths import cache_dir

MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face checkpoint; fetched on first use (``make test`` fetches it before)."""
    store = ModelStore(cache_dir())
    if store.present(MODEL):
        return store.path(MODEL)
    with store_progress(MODEL) as listen:
        return store.get(MODEL, listen)
