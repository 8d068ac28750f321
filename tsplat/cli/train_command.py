"""``tsplat train``. Its options are parsed before PyTorch is imported, so that help and usage errors are fast."""

import json
from argparse import Namespace

from tsplat_command import importing

from .train_options import parse


def train(arguments: Namespace) -> int:
    """Runs ``tsplat train``."""
    with importing():
        options = parse(arguments.rest)
        from ..support.process_identity import is_main_rank
        from ..training import resume
        from ..training import train as run_train
        from ..training.processes.launcher import ranks_and_gpus
        from ..training.runs.context import require_extras
        from ..training.runs.live_view import check_view
        from .shared_steps import launch, options_of, print_next, print_steps_note, result_only

    require_extras(options.settings, view=options.view is not None)
    check_view(options.view, ranks_and_gpus(options.ranks, options.gpus)[0])
    status = launch(arguments.command_line, options.ranks, options.gpus)
    if status is not None:
        return status
    if options.resume is not None:
        names = ("steps", "stop_after", "force", "checkpoint", "scene", "accept_changes", "view")
        with result_only(arguments, options.json):
            metrics = resume(options.resume, **options_of(options, *names))
    else:
        config = options.settings if options.minutes is None else lambda n: parse(arguments.rest, n).settings
        with result_only(arguments, options.json):
            metrics = run_train(config, options.out, **options_of(options, "minutes", "stop_after", "view"))
            print_steps_note(arguments.rest)
    if not options.json:
        print_next("view", options.out if options.resume is None else options.resume)
    elif is_main_rank():
        print(json.dumps(metrics))
    return 0
