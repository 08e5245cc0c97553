"""Records what DPG-Bench's own code scores for made-up questions and answers; writes tests/golden/dpg.json.

Run with the folder of `compute_dpg_bench.py` of TencentQQGYLab/ELLA as the only argument. pandas, with which it reads
its file, stands in here.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from golden import GOLDEN
from PIL import Image

COLUMNS = [
    "item_id", "text", "keywords", "proposition_id", "dependency", "category_broad", "category_detailed", "tuple",
    "question_natural_language",
]  # fmt: skip


def main(source: Path) -> None:
    pandas: Any = ModuleType("pandas")

    class Table:
        def __init__(self, file: str) -> None:
            self.rows = list(csv.DictReader(Path(file).read_text(encoding="utf-8").splitlines()))

        def iterrows(self) -> Iterator[tuple[int, SimpleNamespace]]:
            return ((n, SimpleNamespace(**row)) for n, row in enumerate(self.rows))

    pandas.read_csv = Table
    sys.modules["pandas"] = pandas
    sys.path.insert(0, str(source))
    import compute_dpg_bench as original

    rng, folder = random.Random(3), Path(tempfile.mkdtemp())
    rows, prompts = [], [f"a scene, number {n}, with things" for n in range(12)]
    for n, prompt in enumerate(prompts):
        for question in range(1, rng.randint(3, 9)):
            parents = sorted(rng.sample(range(1, question), min(rng.randint(0, 2), question - 1))) or [0]
            fields = [f"item{n}", prompt, "", question, ", ".join(map(str, parents)), "", "", "entity - whole (x)"]
            rows.append(dict(zip(COLUMNS, [*fields, f"Is it so, {n}.{question}?"], strict=True)))
    # The first row is left out by the original code; no question may depend on it.
    rows.insert(0, {**rows[0], "proposition_id": 99, "dependency": "0"})
    with (folder / "dpg.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    answers = {row["question_natural_language"]: rng.choice([*["yes"] * 6, "no", "a cat"]) for row in rows}
    options = SimpleNamespace(csv=str(folder / "dpg.csv"), pic_num=1, res_path=str(folder / "results.txt"))
    known = original.prepare_dpg_data(options)
    network = SimpleNamespace(vqa=lambda image, question: answers[question])
    scores = {}
    for n, prompt in enumerate(prompts):
        Image.new("RGB", (8, 8)).save(folder / f"item{n}.png")
        scores[prompt] = original.compute_dpg_one_sample(options, known, str(folder / f"item{n}.png"), network, 8)[0]
    found = {"csv": (folder / "dpg.csv").read_text(encoding="utf-8"), "answers": answers, "scores": scores}
    golden = GOLDEN / "dpg.json"
    golden.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(list(scores.values()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
