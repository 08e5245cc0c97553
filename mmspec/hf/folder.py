"""Folders that `save_pretrained` of transformers wrote: models, their classes and their processors."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection, Mapping
from functools import partial
from os.path import isdir
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase
from transformers.models.auto import modeling_auto

from mmspec.arguments import shown
from mmspec.errors import ArgumentError, ModelError, did_you_mean
from mmspec.files.checkpoint import building, check_depths, describe, listed, read_header
from mmspec.files.code_settings import refuse_code, refuse_quantized
from mmspec.files.documents import parse_json, read_object
from mmspec.files.inputs import check_files, read_bytes
from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.hub import current_access, fetch, fetch_if_there
from mmspec.media.listing import list_files

# Classes that generate, by `model_type`.
GENERATIVE: tuple[Mapping[str, Any], ...] = (
    modeling_auto.MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
LOAD_ERRORS = (
    OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError,
    SafetensorError, StrictDataclassError, UnpicklingError, ImportError,
)  # fmt: skip
ADAPTER = "adapter_config.json"  # of peft
WEIGHT_SUFFIXES = (".safetensors", ".bin")
# Buffers that earlier releases of transformers saved and that are computed today.
BUFFERS = re.compile(r"(^|\.)(inv_freq|position_ids|attn\.(masked_)?bias)$")
# Classes that published configurations name -> the class of transformers that loads them: an earlier name of that of
# Qwen2.5-Omni, and the decoders of ACE-Step without their head, which is the embedding.
LOADED_AS = {"Qwen2_5OmniModel": "Qwen2_5OmniForConditionalGeneration", "Qwen3Model": "Qwen3ForCausalLM"}
# Classes whose questions are texts: their processors also read videos, which needs torchvision.
ASKED_IN_TEXT = ("Qwen2_5OmniForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration")
# Argument names of original LlamaGen files, whose converted form uses a class name of transformers.
LLAMAGEN = ("block_size", "cls_token_num")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model, see `read_object`; {} if there is none."""
    try:
        return read_object(path)
    except ModelError:
        return {}


def architecture(folder: Path) -> str | None:
    """The class of a folder's config.json, by name; None if the folder does not contain a transformers model.

    Early conversions, such as those of ImageGPT, name no class but only its `model_type`; others name one of
    `LOADED_AS`.
    """
    config = read_json(folder / "config.json")
    if any(key in config for key in LLAMAGEN):
        return None
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return LOADED_AS.get(str(names[0]), str(names[0]))
    return class_of_type(str(config.get("model_type")))


def class_of_type(model_type: str) -> str | None:
    """The class that transformers' auto classes take for a `model_type`, among those with an adapter; None without."""
    for mapping in GENERATIVE:
        name = mapping.get(model_type)
        if name in GENERATE_ADAPTERS:
            return str(name)
    return None


def folder_of(name: str, where: str | Path) -> Path:
    """The folder of a part of a model, downloaded if it is a Hub id.

    Args:
        name: The argument, for the error.
        where: A folder or a Hub id.

    Raises:
        ArgumentError: If it is neither.
        ModelError: If the download fails.
    """
    if not isinstance(where, (str, Path)):
        raise ArgumentError(f"{name}={shown(where)} is not allowed; it must be a folder or a Hub id")
    path = Path(where) if isdir(where) else fetch(str(where))  # a Path raises for names that are too long
    if path is None:
        raise ArgumentError(f"{name}={shown(str(where))} is neither a folder nor a Hub id")
    check_files(path, f"{name}={shown(str(where))}")
    return path


def read_processor(where: str | Path, name: str) -> Any:
    """The processor of a model class; for ImageGPT the image processor, for `ASKED_IN_TEXT` the tokenizer.

    Args:
        where: A folder or a Hub id.
        name: The model class.

    Raises:
        ArgumentError: If it cannot be loaded, or runs only with code of the folder or repository.
    """
    if name in ASKED_IN_TEXT:
        tokenizer = read_tokenizer(where)
        # Processors may have their chat template in a file that tokenizers do not read.
        file = "chat_template.json"
        found = Path(where) / file if isdir(where) else fetch_if_there(str(where), file)
        template = None if found is None else read_json(found).get("chat_template")
        tokenizer.chat_template = template or tokenizer.chat_template
        return tokenizer
    return _read("AutoImageProcessor" if name == "ImageGPTForCausalImageModeling" else "AutoProcessor", where)


def read_tokenizer(where: str | Path) -> Any:
    """The tokenizer in a folder or Hub repository, for models whose class also has a processor of images.

    Raises:
        ArgumentError: If it cannot be loaded.
    """
    return _read("AutoTokenizer", where)


def tokenizer_of(processor: Any, folder: Path, kind: str = "AutoTokenizer") -> Any:
    """The tokenizer of a model whose processor is its tokenizer.

    Args:
        processor: A tokenizer, or where it is; None is the one in the folder.
        folder: The folder of the model.
        kind: The class of transformers that reads it; PreTrainedTokenizerFast does not ask config.json for a class.

    Raises:
        ArgumentError: If it cannot be loaded, or is no tokenizer.
    """
    if processor is None or isinstance(processor, (str, Path)):
        return _read(kind, processor or folder)
    if not isinstance(processor, PreTrainedTokenizerBase):
        raise ArgumentError(f"processor={shown(processor)} is not allowed; it must be a tokenizer of transformers")
    return processor


def _read(kind: str, where: str | Path) -> Any:
    """What an auto class of transformers reads."""
    if isdir(where):
        check_files(Path(where), f"processor={str(where)!r}")
        check_processor(Path(where))
    try:
        # None, the default, asks on stdin whether code of the folder may run.
        access = current_access()
        return getattr(transformers, kind).from_pretrained(
            where, trust_remote_code=False, cache_dir=access.cache_dir, token=access.token
        )
    except LOAD_ERRORS as error:
        raise ArgumentError(f"processor={str(where)!r} cannot be loaded: {describe(error)}") from None


def check_processor(folder: Path) -> None:
    """Checks that the codec which a processor names, and transformers loads with it, chooses no code.

    Raises:
        ModelError: If its config.json does.
    """
    for file in ("processor_config.json", "audio_tokenizer_config.json"):
        values = read_json(folder / file)
        named = values.get("audio_tokenizer", values)
        if isinstance(named, Mapping) and (codec := named.get("audio_tokenizer_name_or_path")) is not None:
            found = Path(codec) / "config.json" if isdir(codec) else fetch_if_there(str(codec), "config.json")
            if found is not None and found.is_file():
                refuse_code(parse_json(read_bytes(found, "codec"), f"codec: '{found}'"), f"codec {str(codec)!r}")


def model_class(folder: Path) -> str:
    """The name of the class in a folder's config.json.

    Raises:
        ModelError: If the folder does not contain a transformers model.
    """
    name = architecture(folder)
    if name is None:
        raise ModelError(
            f"folder {str(folder)!r} does not contain a transformers model (a config.json that names its class)"
        )
    return name


def load_model(
    folder: Path, device: str, dtype: torch.dtype | str, name: str | Collection[str], unused: tuple[str, ...] = ()
) -> Any:
    """The transformers model in a folder, in evaluation mode.

    Args:
        folder: A folder written by `save_pretrained`.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.
        name: The class to load, or the classes that the one in config.json must be among.
        unused: Prefixes of weights that are not needed and may be missing.

    Raises:
        ModelError: If there is no model, it is of another class, it cannot be loaded, the config states more layers
            than the files have, or weights are missing or unknown: transformers initialises missing weights at random
            and reports both only in its log.
    """
    if not isinstance(name, str):
        found = model_class(folder)
        if found not in name:
            raise ModelError(
                f"model {str(folder)!r} is a {found}, which mmspec does not load here{did_you_mean(found, name)}; it "
                f"loads {', '.join(name)}"
            )
        name = found
    what = f"model {str(folder)!r}"
    if not hasattr(transformers, name):
        raise ModelError(f"{what} is a {name}, which transformers {transformers.__version__} does not have")
    kind = getattr(transformers, name)
    check_depths(what, read_json(folder / "config.json"), count_tensors(folder))
    config = read_config(kind, folder, what)
    check_parameters(kind, config, folder)
    read = kind.from_pretrained
    if hasattr(kind, "load_speakers"):  # Qwen2.5-Omni: its own fails with `output_loading_info`
        read = partial(transformers.PreTrainedModel.from_pretrained.__func__, kind)
    try:
        model, report = read(folder, config=config, dtype=dtype, output_loading_info=True, trust_remote_code=False)
    except LOAD_ERRORS as error:
        raise ModelError(f"{what} cannot be loaded: {describe(error)}") from None
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(unused))
    unknown = sorted(key for key in report["unexpected_keys"] if not BUFFERS.search(key) and not key.startswith(unused))
    if problems := listed({"missing": missing, "unknown": unknown}):
        raise ModelError(f"{what} is {'incomplete' if missing else 'not a ' + name}; {problems}")
    return model.to(device).eval()


def read_config(kind: Any, folder: Path, what: str) -> Any:
    """The configuration of a model in a folder, without what would choose code; see `mmspec.files.code_settings`.

    Args:
        kind: The class of the model.
        folder: The folder with its config.json.
        what: The model, for messages.

    Raises:
        ModelError: If the file cannot be read, the weights are quantized or an adapter of another model's, or they are
            in another folder.
    """
    values = read_object(folder / "config.json")
    refuse_quantized(values, what)
    _refuse_elsewhere(values, folder, what)
    # A class of configurations finds its part in that of a larger model only when it reads a folder itself.
    with TemporaryDirectory(prefix="mmspec-") as place, building(what, f"a {kind.__name__}"):
        (Path(place) / "config.json").write_text(json.dumps(values), encoding="utf-8")
        return kind.config_class.from_pretrained(place)


def check_part(folder: Path, what: str) -> None:
    """Checks that a part of a model, which a library reads itself, chooses no code and has its own weights.

    Raises:
        ModelError: If it does, or has not.
    """
    check_processor(folder)
    file = folder / "config.json"
    values = parse_json(read_bytes(file, "config"), f"config: '{file}'") if file.is_file() else {}
    if not isinstance(values, dict):
        raise ModelError(f"{what}: config.json must contain a JSON object, not a {type(values).__name__}")
    refuse_code(values, what)
    _refuse_elsewhere(values, folder, what)


def _refuse_elsewhere(values: Mapping[str, Any], folder: Path, what: str) -> None:
    """Refuses weights of another folder."""
    if (folder / ADAPTER).is_file():
        raise ModelError(f"{what} has an {ADAPTER}, which names another model to load; merge the adapter")
    named = values.get("transformers_weights")
    if named is not None and (not isinstance(named, str) or Path(named).name != named):
        raise ModelError(f"{what}: config.json names the weights {str(named)!r}; it must be a file of the folder")


def check_parameters(kind: Any, config: Any, folder: Path) -> None:
    """Checks that a config describes no more parameters than the files of weights have bits.

    transformers allocates missing weights before it reports them.

    Raises:
        ModelError: If it does, or cannot be read.
    """
    what = f"model {str(folder)!r}"
    with building(what, f"a {kind.__name__}"):
        parameters = sum(p.numel() for p in kind(config).parameters())
    size = sum(file.stat().st_size for file in list_files(folder, WEIGHT_SUFFIXES))
    if parameters > 8 * size:
        raise ModelError(
            f"{what}: config.json describes {parameters} parameters, its files of weights have {size} bytes"
        )


def count_tensors(folder: Path) -> int:
    """The number of tensors in the files of weights of a folder; of pickles, the number of their storages.

    Raises:
        ModelError: If there are none, or a file cannot be read.
    """
    count = 0
    for file in list_files(folder, WEIGHT_SUFFIXES) if folder.is_dir() else ():
        if file.suffix == ".safetensors":
            count += len(read_header(file, "model"))
        elif file.suffix == ".bin" and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                count += len(archive.namelist())
        elif file.suffix == ".bin":
            count += file.stat().st_size // 64  # a tensor of torch's old format takes more
    if not count:
        raise ModelError(f"model {str(folder)!r} has no weights; there must be a .safetensors or .bin file")
    return count
