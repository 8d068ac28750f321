"""Passes: a call with the cache key of an earlier call replays the launches of the stages instead of running them.

The first call with a cache key runs the stages. The second call is traced (`call_traces`): its launches and operators
become passes (`replay`), one forward and up to two backward, whose tensors have offsets in arenas (`traced_calls`,
`arenas`). The second and later calls replay these passes at new addresses, with the same bits (`calls`,
`replayed_meta`). If grad mode is off and no capacity is given, the third call is traced again, with lists of the sizes
that the second call has measured. `replay_cache` computes cache keys, and decides which calls are replayed.
"""

from .replay_cache import replayed

__all__ = ["replayed"]
