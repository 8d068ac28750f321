"""Passes: a call whose kind is known does not run the stages again. It replays what they launched.

The first call of a kind runs the stages. The second is traced (`traced_calls`): its launches and operators become
passes (`replay`), one forward and up to two backward, whose tensors are at places in arenas (`arenas`). It and later
calls of that kind replay these at new addresses, with the same bits (`calls`, `replayed_meta`). `kinds` tells which
calls are of the same kind, and which are not replayed.
"""

from .kinds import replayed

__all__ = ["replayed"]
