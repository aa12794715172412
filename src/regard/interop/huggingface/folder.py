"""Folders of Hugging Face models: config.json and safetensors are read; pickles and code of a checkpoint never are."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from regard.data.files import require_small_file
from regard.tasks.registry import FOREIGN_TASKS

CONFIG = "config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


def require_transformers() -> None:
    """One line that says how to get it."""
    if find_spec("transformers") is None:
        raise ValueError("a Hugging Face model needs transformers; pip install 'regard[huggingface]'")


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    require_small_file(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({' '.join(str(error).split())}); save the model again") from None
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise ValueError(f"{path} names no model_type; save the model with save_pretrained")
    return found


def refuse_unsafe(folder: Path) -> None:
    """Weights that are pickles can run code, and so can a checkpoint that brings its own modules."""
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(path.name for kind in PICKLES for path in folder.glob(kind))
        remedy = 'load it where you trust it and save it again: model.save_pretrained("folder")'
        if pickles:
            raise ValueError(f"{folder / pickles[0]} is a pickle, which can run code, and is not read; {remedy}")
        raise ValueError(f"{folder} holds no weights: model.safetensors is missing; {remedy}")
    if "auto_map" in read_config(folder):
        raise ValueError(
            f"{folder / CONFIG} names code of its own (auto_map), which is not run; use a model of transformers"
        )
    for path in folder.glob("*.safetensors"):
        if path.is_symlink() and not path.resolve().is_file():
            raise ValueError(f"{path} points to nothing; copy the file")


def model_class(folder: Path) -> Any:
    """The class of transformers that the configuration names."""
    import transformers

    names = read_config(folder).get("architectures") or []
    if not names or not isinstance(names[0], str):
        raise ValueError(f"{folder / CONFIG} names no architecture; save the model with save_pretrained")
    found = getattr(transformers, names[0], None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ValueError(f"{folder / CONFIG}: transformers {transformers.__version__} has no model {names[0]!r:.80}")
    return found


def task_name(folder: Path) -> str:
    """The task of a folder's model, without its weights."""
    require_transformers()
    refuse_unsafe(folder)
    return task_of(model_class(folder), is_encoder_decoder=bool(read_config(folder).get("is_encoder_decoder")))


def task_of(kind: Any, *, is_encoder_decoder: bool) -> str:
    """Which of the tasks a class of transformers is for: by what it reads, and whether it generates."""
    causal, pair, encoder, image, speech = FOREIGN_TASKS
    match kind.main_input_name, bool(kind.can_generate()):
        case "input_ids", False:
            return encoder
        case "input_ids", True:
            return pair if is_encoder_decoder else causal
        case "pixel_values", False:
            return image
        case "input_features", True:
            return speech
    raise ValueError(
        f"{kind.__name__} reads {kind.main_input_name}; what is traced are texts, pictures of vision models, and "
        "sounds of models that write a text; watch it: regard.watch(model)"
    )


def load_folder(folder: Path) -> tuple[nn.Module, Any]:
    """The model, and its tokenizer, image processor or processor; nothing is downloaded."""
    require_transformers()
    refuse_unsafe(folder)
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer
    from transformers.utils import logging

    _, _, _, image, speech = FOREIGN_TASKS
    auto = {image: AutoImageProcessor, speech: AutoProcessor}.get(task_name(folder), AutoTokenizer)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = model_class(folder).from_pretrained(
            folder, use_safetensors=True, local_files_only=True, trust_remote_code=False
        )
        processor = auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder} cannot be loaded: {' '.join(str(error).split())[:300]}; save it again") from None
    finally:
        if shown:
            logging.enable_progress_bar()
    return model.eval(), processor
