"""Load on a server: many clients at a time, of mixed lengths, some of which leave early or read slowly.

    mmspec serve shapes spoken &
    python examples/serving/load.py --url http://127.0.0.1:8000 --seconds 60 --clients 100

Without --url it starts servers itself, with the models of the package, and compares ways to decode such requests: one
after the other, in static batches of the pipeline's own call, and in the running batch. It prints a Markdown table. The
ratio is of tokens per second of processor time, which other processes of the machine disturb little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

WORDS = ("please", "turn", "on", "the", "red", "light", "in", "the", "kitchen")
SIZES, COLORS, SHAPES = ("small", "large"), ("red", "green", "blue", "yellow"), ("circle", "square", "star", "cross")


@dataclass
class Outcome:
    """What became of one request.

    Attributes:
        kind: "image" or "speech".
        end: "ok", "left" (by the client's own will), "refused" or "lost".
        seconds: From its first byte to its end.
        first: Seconds until the first part of the output; None if there was none.
        tokens: Generated tokens of a complete one.
        calls: Its target calls.
        audio: Seconds of audio.
    """

    kind: str
    end: str
    seconds: float
    first: float | None = None
    tokens: int = 0
    calls: int = 0
    audio: float = 0.0


@dataclass
class Totals:
    """The outcomes of a run.

    Attributes:
        seconds: How long the run took.
        cpu: Processor seconds of the server.
        memory: Resident megabytes of the server over time.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0
    memory: list[float] = field(default_factory=list)

    def table_row(self, name: str, baseline: float | None) -> str:
        """A row of the table."""
        done = [one for one in self.outcomes if one.end == "ok"]
        ends = Counter(one.end for one in self.outcomes)
        rate = sum(one.tokens for one in done) / self.seconds
        per_cpu = self.tokens_per_cpu_second
        times = sorted(one.seconds for one in done)
        first = sorted(one.first for one in done if one.kind == "speech" and one.first is not None)
        audio = sorted(one.seconds / one.audio for one in done if one.audio)
        per_call = sum(one.tokens for one in done) / max(sum(one.calls for one in done), 1)
        cells = [name, f"{ends['ok']}", f"{ends['left']}", f"{ends['refused']}", f"{ends['lost']}", f"{rate:.0f}"]
        cells += [f"{per_cpu:.0f}", "1.00" if baseline is None else f"{per_cpu / baseline:.2f}", f"{per_call:.2f}"]
        cells += [f"{quantile(times, 0.5):.2f}", f"{quantile(times, 0.95):.2f}"]
        cells += [f"{quantile(first, 0.5):.2f}", f"{quantile(first, 0.95):.2f}", f"{quantile(audio, 0.5):.2f}"]
        cells.append(", ".join(f"{quantile(self.memory, share):.0f}" for share in (0, 0.25, 0.5, 0.75, 1)))
        return f"| {' | '.join(cells)} |"

    @property
    def tokens_per_cpu_second(self) -> float:
        """Tokens of complete requests per second of the server's processor time."""
        return sum(one.tokens for one in self.outcomes if one.end == "ok") / max(self.cpu, 1e-9)


HEAD = (
    "| decoding | ok | left | refused | lost | tokens/s | tokens/CPU s | ratio | tokens/call | p50 s | p95 s "
    "| first audio p50 s | p95 s | s per s of audio | server MB over time |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile of sorted values, or the value after a share of a series; NaN without any."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


def new_request(rng: random.Random, speech: bool, recipe: str | None) -> tuple[str, dict[str, object]]:
    """The path and the body of a request of random length, guidance and temperature."""
    body: dict[str, object] = {"seed": rng.randrange(2**31), "temperature": rng.choice((0.5, 0.7, 1.0))}
    if recipe is not None:
        body["recipe"] = recipe
    if speech:
        text = " ".join(rng.choices(WORDS, k=rng.randint(2, 14)))
        kind = {"stream_format": "sse", "response_format": "pcm", "initial_codec_chunk_frames": 8}
        return "/v1/audio/speech", {**body, "input": text, **kind}
    prompt = f"a {rng.choice(SIZES)} {rng.choice(COLORS)} {rng.choice(SHAPES)}"
    guidance = rng.choice((1.0, 1.5, 3.0))
    partial = rng.choice((0, 3))
    return "/v1/images/generations", {
        **body, "prompt": prompt, "guidance_scale": guidance, "stream": True, "partial_images": partial
    }  # fmt: skip


async def one(address: tuple[str, int], path: str, body: dict[str, object], leaves: bool, slow: bool) -> Outcome:
    """Sends a request, and reads its events.

    Args:
        address: Host and port.
        path: Of the endpoint.
        body: The JSON object.
        leaves: Whether the client leaves after the first part.
        slow: Whether it reads slowly.
    """
    start, kind = time.perf_counter(), "speech" if "speech" in path else "image"
    outcome = Outcome(kind, "lost", 0.0)
    data = json.dumps(body).encode()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*address, limit=2**22)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        if status != 200:
            outcome.end = "refused" if status in (429, 503) else "lost"
            return outcome
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if outcome.first is None:
                outcome.first = time.perf_counter() - start
                if leaves:
                    outcome.end = "left"
                    return outcome
            if event["type"] in ("image_generation.completed", "speech.audio.done"):
                usage = event["usage"]
                outcome.end, outcome.tokens, outcome.calls = "ok", usage["output_tokens"], usage["target_calls"]
                outcome.audio = event.get("audio_seconds", 0.0)
            if slow:
                await asyncio.sleep(0.2)
    except (OSError, ValueError, IndexError):
        pass
    finally:
        outcome.seconds = time.perf_counter() - start
        if writer is not None:
            writer.close()
    return outcome


async def load(
    url: str, clients: int, seconds: float, speech: float, recipe: str | None, seed: int, pid: int
) -> Totals:
    """Keeps `clients` requests in flight for `seconds` seconds, and waits for the last.

    Args:
        url: Of the server.
        clients: Requests at a time.
        seconds: How long new ones are sent.
        speech: The share of speech requests.
        recipe: Of all requests; None is the server's.
        seed: Of the requests.
        pid: The process of the server; 0 if unknown.
    """
    parts = urlsplit(url)
    address = parts.hostname or "127.0.0.1", parts.port or 80
    rng, totals, start = random.Random(seed), Totals(), time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - start < seconds:
            path, body = new_request(rng, rng.random() < speech, recipe)
            leaves, slow = (rng.random() < 0.1, rng.random() < 0.1) if clients > 1 else (False, False)
            totals.outcomes.append(await one(address, path, body, leaves, slow))

    async def watch() -> None:
        while True:
            totals.memory.append(resident(pid))
            await asyncio.sleep(max(seconds / 20, 0.5))

    watcher, before = asyncio.create_task(watch()), processor_seconds(pid)
    await asyncio.gather(*(client() for _ in range(clients)))
    totals.cpu = processor_seconds(pid) - before
    totals.seconds = time.perf_counter() - start
    totals.memory.append(resident(pid))
    watcher.cancel()
    return totals


def resident(pid: int) -> float:
    """Resident megabytes of a process; NaN if unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return float("nan")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def processor_seconds(pid: int) -> float:
    """Processor time of a process; NaN if unknown."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def static_batches(batch: int, seconds: float, speech: float, seed: int) -> Totals:
    """Decodes the same kind of requests by calls of the pipelines, `batch` requests a call.

    A call waits for its longest text, and its requests share one temperature and one guidance scale, as calls do.
    """
    import mmspec
    from mmspec.cli.pipelines import load_image_generator

    images, voice = load_image_generator("shapes", "cpu"), mmspec.load("spoken")
    rng, totals, start, cpu = random.Random(seed), Totals(), time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        spoken = rng.random() < speech
        requests = [new_request(rng, spoken, None)[1] for _ in range(batch)]
        began, temperature = time.perf_counter(), rng.choice((0.5, 0.7, 1.0))
        if spoken:
            outputs = voice([str(each["input"]) for each in requests], seed=0, temperature=temperature)
            stats, audio = outputs.stats, [output.seconds for output in outputs]
        else:
            prompts = [str(each["prompt"]) for each in requests]
            guidance = rng.choice((1.0, 1.5, 3.0))
            stats = images(prompts, seed=0, temperature=temperature, guidance_scale=guidance).stats
            audio = [0.0] * batch
        took = time.perf_counter() - began
        for i in range(batch):
            outcome = Outcome("speech" if spoken else "image", "ok", took, took if spoken else None, audio=audio[i])
            outcome.tokens, outcome.calls = stats.tokens // batch, sum(row.target_calls for row in stats.rows) // batch
            totals.outcomes.append(outcome)
    totals.seconds, totals.cpu = time.perf_counter() - start, time.process_time() - cpu
    return totals


class Server:
    """`mmspec serve shapes spoken` in a process of its own.

    Args:
        rows: `--max-rows`.
    """

    def __init__(self, rows: int) -> None:
        command = [sys.executable, "-m", "mmspec", "serve", "shapes", "spoken", "--port", "0", "--max-rows", str(rows)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.url = ""
        for line in self.process.stderr:
            if "listening on " in line:
                self.url = line.partition("listening on ")[2].strip()
                break
        else:
            raise SystemExit("the server did not start")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs; without it, servers are started")
    parser.add_argument("--pid", type=int, default=0, help="its process, to tell its memory and processor time")
    parser.add_argument("--clients", type=int, default=100, help="requests at a time")
    parser.add_argument("--seconds", type=float, default=60, help="of each part")
    parser.add_argument("--speech", type=float, default=0.5, help="share of speech requests")
    parser.add_argument("--rows", type=int, default=16, help="--max-rows of the running batch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(HEAD)

    def run(url: str, clients: int, recipe: str | None, pid: int) -> Totals:
        return asyncio.run(load(url, clients, args.seconds, args.speech, recipe, args.seed, pid))

    if args.url is not None:
        print(run(args.url, args.clients, None, args.pid).table_row(f"{args.clients} clients", None))
        return
    with Server(args.rows) as server:
        pid = server.process.pid
        asyncio.run(load(server.url, 4, 3, args.speech, None, args.seed, pid))  # warm up
        plain = run(server.url, 1, "plain", pid)
        print(plain.table_row("plain, one by one", None), flush=True)
        single = run(server.url, 1, None, pid)
        print(single.table_row("speculative, one by one", plain.tokens_per_cpu_second), flush=True)
    static = static_batches(args.rows, args.seconds, args.speech, args.seed)
    print(static.table_row(f"speculative, static batches of {args.rows}", plain.tokens_per_cpu_second), flush=True)
    with Server(args.rows) as server:
        found = run(server.url, args.clients, None, server.process.pid)
    print(
        found.table_row(f"speculative, running batch, {args.clients} clients", plain.tokens_per_cpu_second), flush=True
    )


if __name__ == "__main__":
    main()
