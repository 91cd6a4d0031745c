"""The model in the cache before anything starts, with progress that people can see."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from panal.node.weights import SMOLLM2_135M, ModelCache, cache_folder


def ensure_model(environment: Mapping[str, str], console: Console) -> Path:
    """Where the default model lies, fetched if it is missing. Raises SettingsError."""
    cache = ModelCache(cache_folder(environment))
    found = cache.find(SMOLLM2_135M)
    if found is not None:
        return found
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(f"fetching the model {SMOLLM2_135M.name}", total=SMOLLM2_135M.size_bytes)

        def progress(done_bytes: int, total_bytes: int, words: str) -> None:
            bars.update(bar, completed=done_bytes, total=total_bytes or None, description=words)

        return cache.fetch(SMOLLM2_135M, progress)
