"""The loop of bulk generation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.bulk.calls import GeneratedSample, batches, generate_accepted
from mmspec.bulk.folder import FailedSample, RunStart, SampleEntry, ShardFolder
from mmspec.bulk.requests import SampleRequest
from mmspec.bulk.stores import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BulkResult:
    """What a run has done.

    Attributes:
        finished: Samples that were finished before.
        generated: Samples that it has generated.
        failed: Samples that the model refused.
    """

    finished: int
    generated: int
    failed: int


def generate_missing(
    pipe: Any,
    requests: Sequence[SampleRequest],
    folder: ShardFolder,
    store: Store,
    *,
    batch_size: int,
    fingerprint: str,
    on_samples: Callable[[int], None] | None = None,
) -> BulkResult:
    """Generates the samples that no process has finished.

    A sample is finished when its file is on the disk and the journal has its line, in this order: a process that is
    killed leaves at most a file that the next run writes again, under the same name.

    Args:
        pipe: A pipeline of `mmspec.load`.
        requests: The samples of this process.
        folder: Of this process, inside `mmspec.bulk.folder.open_shard`.
        store: Where the files are kept.
        batch_size: Samples per call.
        fingerprint: Of the weights.
        on_samples: Called with the number of samples that were finished before, generated, or refused.

    Raises:
        ArgumentError: If the pipeline does not accept a setting, or the output cannot be written.
    """
    done, windows = set[str](), dict[str, int]()
    for each in folder.everyone():
        found = [entry for entry, _ in each.journal.read() if store.has(each, entry)]
        done.update(entry.name for entry in found)
        windows |= {entry.recipe: entry.window for entry in found if entry.window}
    pending = [request for request in requests if request.name not in done]
    before = len(requests) - len(pending)
    folder.note_start(RunStart(len(requests), before, folder.journal.count()))
    report = on_samples or (lambda count: None)
    report(before)
    generated = failed = 0
    for batch in batches(pending, batch_size):
        start = time.perf_counter()
        samples, refused = generate_accepted(pipe, batch)
        seconds = time.perf_counter() - start
        log.info("%d samples in %.2f s, %d refused", len(samples), seconds, len(refused))
        entries = []
        for sample in samples:
            if sample.window != (earlier := windows.setdefault(sample.recipe, sample.window)):
                text = "earlier samples of %r had windows of %d tokens, those from now on have %d: seeds differ by that"
                log.warning(text, sample.recipe, earlier, sample.window)
                windows[sample.recipe] = sample.window
            file = store.path(sample.request.name, sample.suffix)
            store.write(file, sample.encode(fingerprint))
            entries.append(_entry(sample, file))
        if refused:
            folder.failures.append([FailedSample(one.name, one.prompt, one.id, why) for one, why in refused])
        if entries:
            folder.journal.append(entries)
            store.settle(entries, last=False)
        generated += len(entries)
        failed += len(refused)
        report(len(batch))
    store.settle([], last=True)
    return BulkResult(before, generated, failed)


def _entry(sample: GeneratedSample, file: str) -> SampleEntry:
    request = sample.request
    settings = {key: value for key, value in request.settings.to_dict().items() if key != "recipe"}
    return SampleEntry(
        name=request.name,
        prompt=request.prompt,
        seed=request.seed,
        id=request.id,
        settings=settings,
        recipe=sample.recipe,
        file=file,
        tokens=sample.stats.tokens,
        calls=sample.stats.target_calls,
        seconds=sample.seconds,
        length=sample.length,
        notes=sample.notes,
        window=sample.window,
    )
