from .errors import MissingDependencyError, TritonCPUError, UnsupportedMachineError, UnsupportedOperationError
from .launcher import launch

__all__ = ["MissingDependencyError", "TritonCPUError", "UnsupportedMachineError", "UnsupportedOperationError", "launch"]
