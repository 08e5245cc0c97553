"""Local copies of files of the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from mmspec.errors import ModelError


def fetch(name: str) -> Path | None:
    """The local copy of `owner/repository` (a folder) or `owner/repository/file`; None if `name` has another form.

    Offline (`HF_HUB_OFFLINE=1`) only cached files are found.

    Raises:
        ModelError: If the download fails.
    """
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:/(.+))?", name)
    if match is None or name.startswith("."):
        return None
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, file = match.groups()
    try:
        return Path(hf_hub_download(repository, file) if file else snapshot_download(repository))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"model {name!r} is not a local path, and its download failed: {reason}") from None
