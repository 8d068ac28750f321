"""Passes: a call like an earlier one does not run the stages again. It replays what they launched.

The first call with a cache key runs the stages. The second is traced (`traced_calls`): its launches and operators
become passes (`replay`), one forward and up to two backward, whose tensors are at offsets in arenas (`arenas`). It and
later calls with that key replay these at new addresses, with the same bits (`calls`, `replayed_meta`). `replay_cache`
has the keys, and says which calls are not replayed.
"""

from .replay_cache import replayed

__all__ = ["replayed"]
