"""``tsplat share`` and ``tsplat pull``: models on the Hugging Face Hub. They require the extra ``hub``.

A repository contains a model, an image of it and a model card. Photographs, cameras and georeferences are not uploaded.
"""

import contextlib
import re
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import ArgumentError, __version__
from ..scene import FileError, Gaussians, open_model, summarize, write_model
from ..scene.formats.models import format_of
from ..scene.gaussians import drop_invalid
from ..scene.images import write_png
from ..support.extras import require
from ..support.files import atomic_write
from ..viewing import first_view, render
from ..viewing.devices import pick_device
from ..viewing.run_cameras import find_background, find_cameras
from ..viewing.run_files import check_output
from .large_models import warn_user
from .model_options import HUB_FILES
from .shared_steps import open_model_of, print_losses, print_next

LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
CARD, PREVIEW, PREVIEW_SIZE = "README.md", "preview.png", (960, 720)

MODEL_ENDINGS = (".ply", ".splat", ".ksplat", ".spz", ".sog", ".rad", ".glb")
"""File extensions that ``pull`` accepts: formats in one file, that run no code when they are read."""

CARD_TEXT = """---
license: {license}
tags:
- tsplat
- gaussian-splatting
- 3d
---

# {name}

![An image of the model]({preview})

{count:,} Gaussians with spherical harmonics of degree {degree}{kinds}, in `{file}`, uploaded with tsplat {version}.

```sh
pip install 'tsplat[hub,viewer]'
tsplat pull {repository}
tsplat view {local}
```
"""

RETRY = "check the name and the network, and try again"
LOGIN = "run hf auth login with a token that may do that, or set HF_TOKEN"
ADVICE = {401: LOGIN, 403: LOGIN, 404: f"check the name; if the repository is private, {LOGIN}"}
"""Advice by HTTP status; :data:`RETRY` for others."""

CLIENTS = ("huggingface_hub", "httpx2", "httpx", "requests")
"""Packages whose exceptions are connection errors; versions of huggingface_hub use different HTTP clients."""


def share(arguments: Namespace) -> int:
    """Runs ``tsplat share``."""
    require("huggingface_hub", "PIL")
    from huggingface_hub import HfApi

    name, api = arguments.repository, HfApi()
    with tempfile.TemporaryDirectory() as temporary, _hub_errors(name):
        folder = Path(temporary)
        has_card = api.file_exists(name, CARD)
        if has_card and arguments.license is not None:
            raise ArgumentError(f"--license: {name} has a card, {CARD}, which is kept; change its license there")
        license = None if has_card else _license(arguments)
        device, _ = pick_device(arguments.backend)
        gaussians = open_model_of(arguments)
        lost = write_model(folder / arguments.file, gaussians)
        write_png(folder / PREVIEW, _preview(gaussians.to(device), arguments))
        if license is not None:
            (folder / CARD).write_text(_card(arguments, gaussians, license), "utf-8")
        api.create_repo(name, private=arguments.private or None, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Upload by tsplat {__version__}")
        uploaded = ", ".join(sorted(file.name for file in folder.iterdir()))
    print(f"uploaded {uploaded}: {api.endpoint}/{name}")
    print_losses(lost, arguments.file)
    print_next("pull", name)
    return 0


def _license(arguments: Namespace) -> str:
    """Returns the license of the model, and asks for it if it is not given. Raises ArgumentError without a terminal."""
    given: str | None = arguments.license
    if given is None:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ArgumentError("--license: expected the license of the model for its card, such as cc-by-4.0")
        given = input("license of the model, such as cc-by-4.0, cc0-1.0 or other: ").strip()
    if LICENSE.fullmatch(given) is None:
        raise ArgumentError(f"--license: expected the Hub's name of a license, such as cc-by-4.0, found {given!r}")
    return given


@torch.no_grad()
def _preview(gaussians: Gaussians, arguments: Namespace) -> Tensor:
    """Renders an image of a model, [H, W, 3]; a run is shown from its first camera."""
    valid = drop_invalid(gaussians, warn_user)
    camera = first_view(valid, find_cameras(arguments.model)).camera(*PREVIEW_SIZE)
    background = find_background(arguments.model) or (0.0, 0.0, 0.0)
    return render(valid, camera, background=background, backend=arguments.backend)


def _card(arguments: Namespace, gaussians: Gaussians, license: str) -> str:
    """Returns the model card, Markdown with metadata."""
    kinds = [kind for kind, is_set in (("2D", gaussians.surfels), ("antialiased", gaussians.antialiased)) if is_set]
    return CARD_TEXT.format(
        license=license,
        name=arguments.repository.partition("/")[2],
        preview=PREVIEW,
        count=len(gaussians),
        degree=gaussians.sh_degree,
        kinds=f" ({', '.join(kinds)})" if kinds else "",
        file=arguments.file,
        version=__version__,
        repository=arguments.repository,
        local=_local_name(arguments.repository, arguments.file),
    )


def _local_name(repository: str, file: str) -> str:
    """Returns the name under which ``pull`` writes a file, such as ``kettle.compressed.ply``."""
    ending = file.rpartition("/")[2].removeprefix("scene")
    name = repository.partition("/")[2]
    return f"{name}{ending}" if ending.startswith(".") else ending


def pull(arguments: Namespace) -> int:
    """Runs ``tsplat pull``."""
    require("huggingface_hub")
    from huggingface_hub import HfApi

    name, api = arguments.repository, HfApi()
    with _hub_errors(name):
        files = api.list_repo_files(name, revision=arguments.revision)
        file = _choose(name, files, arguments.file)
        out = Path(_local_name(name, file)) if arguments.out is None else arguments.out
        if arguments.out is not None and format_of(out, None) != format_of(file, None):
            raise ArgumentError(
                f"--out: expected a name with the suffix of {file}, found {str(out)!r}; convert the model afterwards"
            )
        check_output(out)
        with tempfile.TemporaryDirectory() as folder:
            downloaded = api.hf_hub_download(name, file, revision=arguments.revision, local_dir=folder)
            summary = summarize(open_model(downloaded, warn=warn_user))
            with open(downloaded, "rb") as source, atomic_write(out) as target:
                shutil.copyfileobj(source, target)
    print(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, {summary.count:,} Gaussians")
    print_next("view", out)
    return 0


def _choose(name: str, files: list[str], wanted: str | None) -> str:
    """Returns the name of a repository's model file. Raises FileError if there is none, or several."""
    models = [file for file in files if file.endswith(MODEL_ENDINGS)]
    if wanted is not None:
        if wanted not in models:
            raise FileError(f"{name}: expected a model {wanted!r}, found {', '.join(models) or 'no model'}")
        return wanted
    shared = [file for file in HUB_FILES if file in models] or models
    if not shared or (len(shared) > 1 and shared is models):
        raise FileError(f"{name}: expected one model, found {', '.join(models) or 'none'}; choose one with --file")
    return shared[0]


@contextlib.contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Converts errors of Hub requests to FileError, with advice."""
    try:
        yield
    except ArgumentError:
        raise
    except Exception as error:
        if type(error) is ValueError:  # metadata of the card, which the Hub checks
            raise ArgumentError(f"{name}: {error}") from error
        status: Any = getattr(getattr(error, "response", None), "status_code", None)
        if status is None and type(error).__module__.partition(".")[0] not in CLIENTS:
            raise
        first = next(iter(str(error).splitlines()), type(error).__name__)
        answered = first if status is None else f"the Hub answered {status}"
        raise FileError(f"{name}: {answered}; {ADVICE.get(status, RETRY)}") from error
