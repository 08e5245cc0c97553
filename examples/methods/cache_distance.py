"""What KV caches of 8 and 4 bits cost: total variation of the target distribution at each token, and bytes.

python cache_distance.py MODEL PROMPTS [SEQUENCES]
"""

from __future__ import annotations

import sys

import torch

import mmspec
from mmspec.batching.call import decode_rows
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.gear import Gear
from mmspec.decoding.quantized_cache import cache_distance, quantized_cache
from mmspec.metrics.prompts import read_prompts
from mmspec.recipes import parse

model, prompts, count = sys.argv[1], read_prompts(sys.argv[2]), int((sys.argv[3:] or [8])[0])
pipe = mmspec.load(model)
prepared = pipe.prepare(prompts[:count], 16, 1.0, 1.0)
with torch.inference_mode():
    target = prepared.make()
    rows = PreparedRows(target, prepared.layout, prepared.samplings, prepared.resources)
    tokens = torch.stack(decode_rows(rows, parse("scd"), range(count))[0]).to(target.device)
    sampler = prepared.layout.sampler(prepared.samplings, target.device)
    print(f"{model}: {count} sequences, temperature 1, no guidance")
    print("| bits | total variation per token, mean | largest | bytes of the cache |")
    print("| --- | ---: | ---: | ---: |")
    for bits, gear in ((8, None), (4, None), (4, Gear(2, 0)), (4, Gear(0, 1)), (4, Gear(2, 1))):
        distance = cache_distance(prepared.make, sampler, tokens, bits, gear)
        with quantized_cache(bits, gear):
            size = prepared.make()
            size.prefill()
        whole = prepared.make()
        whole.prefill()
        share = size.cache_bytes / whole.cache_bytes
        name = f"{bits}" if gear is None else f"{bits}, {gear.outliers} outliers, rank {gear.rank}"
        print(f"| {name} | {distance.mean():.4f} | {distance.max():.3f} | {share:.0%} |", flush=True)
