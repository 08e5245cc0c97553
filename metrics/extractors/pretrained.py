"""Loading networks of transformers, from a folder or the Hub, for the extractors that wrap them."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import isdir
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
import transformers
from diffusers.models.modeling_utils import ModelMixin
from transformers import PreTrainedModel

from mmspec.errors import ModelError
from mmspec.files.documents import one_line
from mmspec.files.inputs import check_files
from mmspec.hf.folder import check_processor, read_config
from mmspec.hub import fetch_if_there
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images

SavedModel = TypeVar("SavedModel", bound=ModelMixin)


class PretrainedExtractor:
    """A network of transformers with its processor, and its tokenizer if it reads text.

    Args:
        where: A folder or Hub id with all of them.
        device: Where the network runs.

    Attributes:
        name: The extractor's name.
        model_class: The network's class in transformers.
        processor_class: The class of its processor of images or audio.
        reads_text: Whether it has a tokenizer.
        fingerprint: Of the network's weights.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    name: str
    model_class: ClassVar[str]
    processor_class: ClassVar[str] = "AutoImageProcessor"
    reads_text: ClassVar[bool] = False

    def __init__(self, where: str, device: str = "cpu") -> None:
        self.model = load_pretrained(getattr(transformers, self.model_class), where, self.name)
        self.model.float().eval().to(device)
        self.processor = load_pretrained(getattr(transformers, self.processor_class), where, self.name)
        self.tokenizer: Any = None
        if self.reads_text:
            self.tokenizer = load_pretrained(transformers.AutoTokenizer, where, self.name)
        self.fingerprint = fingerprint_of(self.model)


def load_pretrained(kind: Any, where: str, extractor: str) -> Any:
    """The result of `kind.from_pretrained(where)`; no code from there is run, and none is offered to be run.

    Args:
        kind: A class of transformers.
        where: A folder or Hub id.
        extractor: The extractor's name, for the message.

    Raises:
        ModelError: If nothing can be loaded, or a model's tensors are incomplete.
    """
    is_model = issubclass(kind, PreTrainedModel)
    options: dict[str, Any] = {}
    try:
        if isdir(where):
            check_files(Path(where), extractor)
            check_processor(Path(where))
        if is_model:
            file = Path(where) / "config.json" if isdir(where) else fetch_if_there(where, "config.json")
            if file is not None and file.is_file():
                options["config"] = read_config(kind, file.parent, repr(where))
            options["output_loading_info"] = True
        found = kind.from_pretrained(where, trust_remote_code=False, **options)
    # Files of unknown origin make the loaders raise nearly anything.
    except Exception as error:
        raise ModelError(
            f"extractor {extractor!r}: cannot load {kind.__name__} from {where!r} "
            f"(name a folder that save_pretrained wrote, or a Hub id): {one_line(error)}"
        ) from None
    if not is_model:
        return found
    model, loading = found
    check_complete(loading, where, extractor)
    return model


def load_saved(kind: type[SavedModel], folder: Path, extractor: str) -> SavedModel:
    """A network of diffusers' `ModelMixin`, in float32, from a folder that `save_pretrained` wrote.

    Args:
        kind: Its class.
        extractor: The extractor's name, for the message.

    Raises:
        ModelError: If nothing can be loaded, or its tensors are incomplete.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"extractor {extractor!r}: '{folder}' is no folder with a classifier that save_pretrained wrote"
        )
    try:
        # Without low_cpu_mem_usage=False diffusers warns on stderr that accelerate is not installed.
        model, loading = kind.from_pretrained(
            folder, torch_dtype=torch.float32, low_cpu_mem_usage=False, output_loading_info=True
        )
    except Exception as error:  # files of unknown origin make the loader raise nearly anything
        raise ModelError(
            f"extractor {extractor!r}: cannot load a classifier from '{folder}': {one_line(error)}"
        ) from None
    check_complete(loading, str(folder), extractor)
    return cast(SavedModel, model.eval())


def check_complete(loading: Mapping[str, Any], where: str, extractor: str) -> None:
    """Checks that every tensor of a network came from its files, and none was left at random.

    Args:
        loading: The second result of `from_pretrained(..., output_loading_info=True)`.
        where: The folder or Hub id, for the message.
        extractor: The extractor's name, for the message.

    Raises:
        ModelError: If tensors are missing or have other shapes.
    """
    absent = sorted(map(str, [*loading["missing_keys"], *loading.get("mismatched_keys", ())]))
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise ModelError(
            f"extractor {extractor!r}: {where!r} lacks {', '.join(absent[:3])}{more}; its network is another one"
        )


def pixel_values(processor: Any, images: Images, device: torch.device) -> torch.Tensor:
    """Preprocesses images uint8 [B, H, W, 3] to the network's input, float32 [B, 3, H', W'].

    Images stay uint8 until here: processors take floats for numbers in 0..255 and would scale them a second time.
    """
    return torch.as_tensor(
        np.asarray(processor(images=list(images), input_data_format="channels_last", return_tensors="np").pixel_values)
    ).to(device)
