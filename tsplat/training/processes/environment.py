"""Environment variables by which torchrun and Slurm's ``srun`` set the rank of a process."""

import os
import re
from collections.abc import Mapping

from ...errors import ArgumentError

RANK, WORLD_SIZE, LOCAL_RANK, ADDRESS, PORT = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
"""Number of ranks on this machine; Slurm does not set it."""

SLURM_STEP = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR", ADDRESS)
"""Variables that only tasks of ``srun`` have; a batch script has Slurm's other variables, too."""

PORTS = range(15000, 30000)
"""Ports from which one is chosen by the job's number; below the range of ephemeral ports."""


def is_launched() -> bool:
    """Returns whether a launcher started this process as a rank. For a task of ``srun``, sets torchrun's variables.

    Raises ArgumentError if a variable is missing, is not an integer, or contradicts another one.
    """
    variables = rank_variables(os.environ)
    os.environ.update(variables)
    return bool(variables)


def is_restarted() -> bool:
    """Returns whether torchrun started this rank again, after another one failed or a machine was lost."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns torchrun's variables, as torchrun or Slurm sets them; empty for a process that no launcher started."""
    given = {name: environment[name] for name in (RANK, WORLD_SIZE, LOCAL_RANK) if name in environment}
    task = _slurm_task(environment)
    if RANK not in given and WORLD_SIZE not in given:
        if not task:
            return {}
        _check(task, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        return task | {ADDRESS: environment.get(ADDRESS) or _address(environment), PORT: _port(environment)}
    if missing := [name for name in (RANK, WORLD_SIZE) if name not in given]:
        raise ArgumentError(f"{missing[0]}: expected with {next(iter(given))}, which is set; set both or neither")
    _check(given, RANK, WORLD_SIZE, LOCAL_RANK)
    # torchrun may itself be a task of srun.
    is_task = task and "TORCHELASTIC_RUN_ID" not in environment and task[WORLD_SIZE] == given[WORLD_SIZE]
    if is_task and task[RANK] != given[RANK]:
        raise ArgumentError(
            f"RANK: is {given[RANK]} in task {task[RANK]} of srun; set it in the task, or unset RANK and WORLD_SIZE"
        )
    return given


def _slurm_task(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns rank, world size and local rank of a task of ``srun``, by torchrun's names; empty for a single task."""
    if "SLURM_PROCID" not in environment or not any(name in environment for name in SLURM_STEP):
        return {}
    size = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")
    if size == "1":
        return {}
    if "SLURM_LOCALID" not in environment:
        raise ArgumentError("SLURM_LOCALID: expected with SLURM_PROCID, which is set; start tasks with srun")
    return {RANK: environment["SLURM_PROCID"], WORLD_SIZE: size, LOCAL_RANK: environment["SLURM_LOCALID"]}


def _check(variables: Mapping[str, str], *names: str) -> None:
    """Checks rank, world size and, if given, local rank. `names` are the variables' names in messages."""
    for name, value in zip(names, variables.values()):
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise ArgumentError(f"{name}: expected an integer of 0 or more, found {value!r}")
    rank, size = int(variables[RANK]), int(variables[WORLD_SIZE])
    if not rank < size:
        raise ArgumentError(f"{names[0]}: expected less than {names[1]}, which is {size}, found {rank}")
    if int(variables.get(LOCAL_RANK, "0")) > rank:
        raise ArgumentError(f"{names[2]}: expected at most {names[0]}, which is {rank}, found {variables[LOCAL_RANK]}")


def _address(environment: Mapping[str, str]) -> str:
    """Returns the first node of a step, which has rank 0, from a list in Slurm's notation: ``gpu[03-05,9],login1``."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        if address := environment.get("SLURM_LAUNCH_NODE_IPADDR"):
            return address
        raise ArgumentError("MASTER_ADDR: neither it nor SLURM_STEP_NODELIST is set; set it to the machine of rank 0")
    return re.sub(r"\[([0-9]+)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodes)[0])


def _port(environment: Mapping[str, str]) -> str:
    """Returns the port of rank 0: the given one, or one computed from the numbers of the job and its step."""
    if port := environment.get(PORT):
        return port
    job, step = (
        int("".join(re.findall("[0-9]", environment.get(name, ""))) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return str(PORTS[(17 * job + step) % len(PORTS)])
