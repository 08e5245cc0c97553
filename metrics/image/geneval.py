"""GenEval (Ghosh et al. 2023): whether an image shows the objects, counts, colors and places that its prompt states.

What a prompt asks for is read off the prompt itself, since GenEval's prompts follow six templates. The rules are those
of the published evaluation: confidence 0.3, for counting 0.9; at most 16 objects of a class; colors by CLIP on crops
whose other pixels are gray; positions by the centers of boxes, less a tenth of their sizes. The detector is a
Mask2Former of transformers where the published one is of mmdetection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError, PromptError, unknown_name
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.extractors.clip import ClipExtractor
from mmspec.metrics.extractors.detector import Detection, ObjectDetector
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.features import Features, unit_length
from mmspec.metrics.metric import Groups, Metric, Rows, SampleBatch
from mmspec.metrics.shares import ratio_of, share_of

TASKS: Final = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
COLORS: Final = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS: Final = ("left of", "right of", "above", "below")
OBJECTS: Final = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "computer mouse", "tv remote", "computer keyboard", "cell phone", "microwave", "oven", "toaster",
    "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
# Names of the same classes in configurations of detectors.
_ALIASES: Final = {
    "motorbike": "motorcycle", "aeroplane": "airplane", "sofa": "couch", "pottedplant": "potted plant",
    "diningtable": "dining table", "tvmonitor": "tv", "mouse": "computer mouse", "remote": "tv remote",
    "keyboard": "computer keyboard",
}  # fmt: skip
_NUMBERS: Final = {"two": 2, "three": 3, "four": 4}
CONFIDENCE, COUNTING, MOST, MARGIN = 0.3, 0.9, 16, 0.1
GRAY = 153  # of the pixels around an object, #999


@dataclass(frozen=True)
class Wanted:
    """One kind of object that a prompt asks for.

    Attributes:
        name: Its class.
        count: How many at least.
        color: "" for any.
        relation: Where it stands, seen from the first kind; "" for anywhere.
    """

    name: str
    count: int = 1
    color: str = ""
    relation: str = ""


@dataclass(frozen=True)
class Task:
    """What a prompt of GenEval asks for.

    Attributes:
        name: One of `TASKS`.
        wanted: The kinds of objects; a relation is to the first.
        at_most: The largest number of the first kind; None for any.
    """

    name: str
    wanted: tuple[Wanted, ...]
    at_most: int | None = None


def parse(prompt: str) -> Task:
    """What a prompt asks for.

    Raises:
        PromptError: If the prompt follows none of GenEval's templates.
    """
    text = " ".join(prompt.lower().split()).removesuffix(".")
    match = re.fullmatch(r"a photo of (.+)", text)
    if match is None:
        raise PromptError(f"prompt {prompt!r} is not one of GenEval's; they start with 'a photo of'")
    rest = match[1]
    number, _, plural = rest.partition(" ")
    if number in _NUMBERS and (name := _singular(plural)):
        count = _NUMBERS[number]
        return Task("counting", (Wanted(name, count),), count)
    for relation in RELATIONS:
        first, found, second = rest.partition(f" {relation} ")
        if found and (a := _thing(first)) and (b := _thing(second)) and not a[0] + b[0]:
            return Task("position", (Wanted(b[1]), Wanted(a[1], relation=relation)))
    things = [_thing(part) for part in rest.split(" and ")]
    known = [thing for thing in things if thing is not None]
    if len(known) == len(things) and len(known) in (1, 2):
        wanted = tuple(Wanted(name, color=color) for color, name in known)
        colored = all(color for color, _ in known)
        if len(known) == 1:
            return Task("colors" if colored else "single_object", wanted)
        if colored or not any(color for color, _ in known):
            return Task("color_attr" if colored else "two_object", wanted)
    raise PromptError(f"prompt {prompt!r} is not one of GenEval's; cannot read {rest!r}")


def _thing(text: str) -> tuple[str, str] | None:
    """Color, "" for none, and class of `a red car`; None for anything else."""
    match = re.fullmatch(r"an? (.+)", text)
    if match is None:
        return None
    if match[1] in OBJECTS:
        return "", match[1]
    color, _, name = match[1].partition(" ")
    return (color, name) if color in COLORS and name in OBJECTS else None


def _singular(plural: str) -> str:
    """The class whose plural, by GenEval's rule, this is; "" for none."""
    return next((name for name in OBJECTS if plural == name + ("es" if name.endswith("s") else "s")), "")


class ColorJudge(Protocol):
    """Names the colors of objects."""

    def __call__(self, image: Images, objects: Sequence[Detection], name: str) -> list[str]:
        """One of `COLORS` for each object of that class in an image uint8 [H, W, 3]."""
        ...


def shows(task: Task, image: Images, detections: Sequence[Detection], color_of: ColorJudge) -> bool:
    """Whether an image shows what a prompt asks for.

    Args:
        task: What to look for.
        image: uint8 [H, W, 3].
        detections: Its objects, most confident first.
        color_of: Names their colors.
    """
    least = COUNTING if task.name == "counting" else CONFIDENCE
    by_class: dict[str, list[Detection]] = {}
    for one in detections:
        name = _ALIASES.get(one.name, one.name)
        if one.score > least and len(by_class.setdefault(name, [])) < MOST:
            by_class[name].append(one)
    groups: list[list[Detection]] = []
    for wanted in task.wanted:
        found = by_class.get(wanted.name, [])[: wanted.count]
        if len(found) < wanted.count:
            return False
        if wanted.color and color_of(image, found, wanted.name).count(wanted.color) < wanted.count:
            return False
        if wanted.relation and not all(wanted.relation in relations(a, b) for a in found for b in groups[0]):
            return False
        groups.append(found)
    return task.at_most is None or len(by_class[task.wanted[0].name]) <= task.at_most


def relations(a: Detection, b: Detection) -> set[str]:
    """Where the center of one box lies seen from another, if they are far enough apart for their sizes."""
    boxes = np.array([a.box, b.box], dtype=np.float64).reshape(2, 2, 2)
    centers, sizes = boxes.mean(1), np.abs(np.diff(boxes, axis=1))[:, 0]
    offset = centers[0] - centers[1]
    beyond = np.maximum(np.abs(offset) - MARGIN * (sizes[0] + sizes[1]), 0) * np.sign(offset)
    if np.all(np.abs(beyond) < 1e-3):
        return set()
    x, y = beyond / np.linalg.norm(offset)
    tests = {"left of": x < -0.5, "right of": x > 0.5, "above": y < -0.5, "below": y > 0.5}
    return {name for name, holds in tests.items() if holds}


class ClipColors:
    """Colors by CLIP, as GenEval names them: the prompts of each color, averaged, against the object's crop.

    Args:
        clip: The published evaluation uses openai/clip-vit-large-patch14.
    """

    def __init__(self, clip: ClipExtractor) -> None:
        self.clip = clip
        self._texts: dict[str, Features] = {}

    def __call__(self, image: Images, objects: Sequence[Detection], name: str) -> list[str]:
        if name not in self._texts:
            means = []
            for color in COLORS:
                prompts = [f"a photo of a {color} {name}", f"a photo of a {color}-colored {name}"]
                texts = unit_length(self.clip.texts([*prompts, f"a photo of a {color} object"]), "prompts")
                means.append(texts.mean(0))
            self._texts[name] = unit_length(np.stack(means), "prompts")
        found = []
        for one in objects:
            crop = unit_length(self.clip(crop_of(image, one)[None]), "crops")
            found.append(COLORS[int((crop @ self._texts[name].T).argmax())])
        return found


def crop_of(image: Images, one: Detection) -> NDArray[np.uint8]:
    """The box of an object, with gray where its mask is not."""
    left, top, right, bottom = (int(round(edge)) for edge in one.box)
    shown = np.where(one.mask[..., None], image, np.uint8(GRAY))
    return np.ascontiguousarray(shown[top : max(bottom, top + 1), left : max(right, left + 1)])


@dataclass(frozen=True)
class GenEvalNetworks:
    """The two networks of the metric.

    Attributes:
        detector: Finds objects.
        colors: Names colors.
        name: Of the extractor, in results.
        fingerprint: Of both.
    """

    detector: ObjectDetector
    colors: ClipColors
    name: str
    fingerprint: str


class GenEval(Metric):
    """The mean over tasks of the share of images that show what their prompt asks for, as the authors average.

    Args:
        name: "geneval", or "geneval@TASK" for a single task.
        task: One of `TASKS`; "" for all.
    """

    kind = "image"
    extractor = "detector"
    weights = ("clip",)
    needs_prompts = True
    higher_is_better = True
    is_share = True

    def __init__(self, name: str, task: str = "") -> None:
        super().__init__(name)
        self.task = task

    @property
    def column(self) -> str:
        return "geneval"

    def load_extractor(self, weights: Mapping[str, str], device: str) -> GenEvalNetworks:
        """Detector and CLIP.

        Raises:
            ArgumentError: If the weights of either are not named.
            ModelError: If one cannot be loaded.
        """
        if not weights.get("detector") or not weights.get("clip"):
            raise ArgumentError(
                f"metric {self.name!r} needs a detector and a CLIP for colors; name both with --detector and --clip"
            )
        detector, clip = ObjectDetector(weights["detector"], device), ClipExtractor(weights["clip"], device)
        fingerprint = f"{detector.fingerprint}-{clip.fingerprint}"
        return GenEvalNetworks(detector, ClipColors(clip), "detector", fingerprint)

    def check_prompts(self, prompts: Sequence[str], weights: Mapping[str, str]) -> None:
        tasks = {parse(prompt).name for prompt in prompts}
        if self.task and self.task not in tasks:
            raise PromptError(f"metric {self.name!r}: no prompt is of task {self.task!r}")

    def extract(self, samples: SampleBatch, extractor: GenEvalNetworks) -> Rows:
        """The number of the task and whether the image is right, float64 [2]."""
        found = extractor.detector.detect(samples.images, CONFIDENCE)
        rows = []
        for image, prompt, detections in zip(samples.images, samples.prompts, found, strict=True):
            task = parse(prompt)
            right = shows(task, image, detections, extractor.colors)
            rows.append(np.array([TASKS.index(task.name), right], dtype=np.float64))
        return rows

    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        tasks, right = np.stack(rows).T
        if self.task:
            kept = tasks == TASKS.index(self.task)
            own = [] if groups is None else [prompt for prompt, ours in zip(groups, kept, strict=True) if ours]
            return share_of(right[kept], own if len(set(own)) > 1 else None)
        _, which, counts = np.unique(tasks, return_inverse=True, return_counts=True)
        weights = (len(tasks) / len(counts) / counts)[which]  # tasks count alike, whatever their number of prompts
        return ratio_of(weights * right, weights, groups)

    def sample_scores(self, rows: Rows) -> Sequence[float] | None:
        return None if self.task else [float(row[1]) for row in rows]


GENEVAL = GenEval("geneval")


def task_metric(task: str) -> GenEval:
    """The metric of one task.

    Raises:
        UnknownNameError: If there is no such task.
    """
    if task not in TASKS:
        raise unknown_name("task of GenEval", task, TASKS)
    return GenEval(f"geneval@{task}", task)
