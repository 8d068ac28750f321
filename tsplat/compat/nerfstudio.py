"""nerfstudio's method ``tsplat-splatfacto``: splatfacto with tsplat instead of gsplat.

An entry point of the group ``nerfstudio.method_configs`` refers to `splatfacto` in this module, so that ``ns-train
tsplat-splatfacto`` works if both packages are installed. nerfstudio is imported when a name of this module is first
used: by nerfstudio itself, or when it reads the configuration of a run.
"""

import copy
import dataclasses
from typing import Any

NAMES = ("TsplatModel", "TsplatModelConfig", "splatfacto")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(zip(NAMES, _define(), strict=True))
    return globals()[name]


def _define() -> tuple[type, type, object]:
    """Defines the model, its configuration, and the specification of the method."""
    from nerfstudio.configs.method_configs import method_configs
    from nerfstudio.models import splatfacto as module
    from nerfstudio.plugins.types import MethodSpecification

    class TsplatModel(module.SplatfactoModel):  # type: ignore[misc]
        """Splatfacto on tsplat; from the first model on, splatfacto's module uses tsplat in this process."""

        def populate_modules(self) -> None:
            from .gsplat.rendering import rasterization
            from .gsplat.strategy import DefaultStrategy

            module.rasterization, module.DefaultStrategy = rasterization, DefaultStrategy
            super().populate_modules()

    @dataclasses.dataclass
    class TsplatModelConfig(module.SplatfactoModelConfig):  # type: ignore[misc]
        """The settings of splatfacto."""

        _target: type = dataclasses.field(default_factory=lambda: TsplatModel)

    for defined in (TsplatModel, TsplatModelConfig):
        defined.__qualname__ = defined.__name__  # a run's config.yml refers to them by this name
    config = copy.deepcopy(method_configs["splatfacto"])
    settings = {
        field.name: getattr(config.pipeline.model, field.name) for field in dataclasses.fields(config.pipeline.model)
    }
    config.method_name = "tsplat-splatfacto"
    config.pipeline.model = TsplatModelConfig(**(settings | {"_target": TsplatModel}))
    description = "Splatfacto, rendered by tsplat's Triton kernels, without a CUDA toolkit"
    return TsplatModel, TsplatModelConfig, MethodSpecification(config=config, description=description)
