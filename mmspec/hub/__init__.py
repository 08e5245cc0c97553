"""Local copies of files of the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from glob import escape
from importlib import import_module
from pathlib import Path

from mmspec.errors import ModelError
from mmspec.hub.files import DESCRIPTIONS, needed_files

# Called before weights are downloaded with a repository, the folder of its descriptions (None if it has none), and the
# names of its files.
CheckFn = Callable[[str, Path | None, Sequence[str]], None]


@dataclass(frozen=True)
class HubAccess:
    """Where downloads are stored, and the identity they are made with.

    Attributes:
        cache_dir: The folder of the cache; None is the Hub client's.
        token: An access token; None is the one that `hf auth login` has stored, False none at all.
        preferred: Weights that are downloaded instead of others, of a repository with several models; see
            `mmspec.hub.files.needed_files`.
    """

    cache_dir: str | Path | None = None
    token: str | bool | None = None
    preferred: tuple[str, ...] = ()


_ACCESS: ContextVar[HubAccess | None] = ContextVar("mmspec_hub_access", default=None)


@contextmanager
def hub_access(access: HubAccess) -> Iterator[None]:
    """Downloads inside the context, also those of processors, codecs and draft models, are made with this access."""
    reset = _ACCESS.set(access)
    try:
        yield
    finally:
        _ACCESS.reset(reset)


def current_access() -> HubAccess:
    """The access of the innermost `hub_access`."""
    return _ACCESS.get() or HubAccess()


def fetch(name: str, revision: str | None = None, check: CheckFn | None = None) -> Path | None:
    """The local copy of `owner/repository` (a folder) or `owner/repository/file`; None if `name` has another form.

    Of a repository, the descriptions (config.json, model_index.json) are downloaded first; then the files that mmspec
    reads, see `mmspec.hub.files.needed_files`. Offline (`HF_HUB_OFFLINE=1`) only cached files are found.

    Args:
        name: A Hub id, or one followed by the path of a file.
        revision: A branch, tag or commit; None is the main branch.
        check: Called before the weights of a repository are downloaded; raises an error if they are of no use.

    Raises:
        ModelError: If the download fails.
    """
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:/(.+))?", name)
    if match is None or name.startswith("."):
        return None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, file = match.groups()
    access = current_access()
    failures: tuple[type[Exception], ...] = (
        HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, *connection_errors(),
    )  # fmt: skip
    try:
        if file:
            found = hf_hub_download(repository, file, revision=revision, cache_dir=access.cache_dir, token=access.token)
            return Path(found)
        return fetch_repository(repository, revision, access, check)
    except failures as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model {name!r} is not a local path, and its download failed: {reason}{advice(error)}"
        ) from None


def fetch_if_there(repository: str, file: str) -> Path | None:
    """The local copy of a file of a repository; None if it has none, or offline, if no earlier call has downloaded it.

    Raises:
        ModelError: If the download fails.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    access = current_access()
    try:
        return Path(hf_hub_download(repository, file, cache_dir=access.cache_dir, token=access.token))
    except EntryNotFoundError:  # a file that is not cached is one too
        return None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"the download of {file} of {repository!r} failed: {error}{advice(error)}") from None


def fetch_repository(repository: str, revision: str | None, access: HubAccess, check: CheckFn | None) -> Path:
    """The local copy of what mmspec needs of a repository; see `fetch`."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    unreachable: tuple[type[Exception], ...] = (OfflineModeIsEnabled, *connection_errors())
    try:
        listing = HfApi(token=access.token).model_info(repository, revision=revision).siblings or []
    except unreachable as error:
        # An earlier call has downloaded what is needed; it cannot be asked for by name without a listing.
        try:
            return Path(
                snapshot_download(
                    repository,
                    revision=revision,
                    cache_dir=access.cache_dir,
                    local_files_only=True,
                    allow_patterns=list(DESCRIPTIONS),
                )
            )
        except LocalEntryNotFoundError:
            if isinstance(error, OfflineModeIsEnabled):
                raise
            reason = f"the Hub cannot be reached ({error}), and nothing of the repository is in the cache"
            raise ConnectionError(reason) from error
    files = [entry.rfilename for entry in listing]
    folder: Path | None = None
    for file in DESCRIPTIONS:
        if file in files:
            found = hf_hub_download(repository, file, revision=revision, cache_dir=access.cache_dir, token=access.token)
            folder = Path(found).parent
    if check is not None:
        check(repository, folder, files)
    needed = needed_files(files, folder, access.preferred)
    return Path(
        snapshot_download(
            repository,
            revision=revision,
            cache_dir=access.cache_dir,
            token=access.token,
            allow_patterns=[escape(file) for file in needed],
        )
    )


def connection_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a connection that fails: Python's own, and those of the HTTP library of the Hub's client.

    Releases of huggingface_hub use httpx or httpx2, whose errors are no `ConnectionError`.
    """
    from huggingface_hub import get_session

    library = import_module(type(get_session()).__module__.partition(".")[0])
    found = getattr(library, "TransportError", None)
    return (ConnectionError,) if found is None else (ConnectionError, found)


def advice(error: Exception) -> str:
    """What helps against a refused download; an empty string if nothing is known to."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return "; if the model is private or gated, pass token=, or run `hf auth login`"
    return ""
