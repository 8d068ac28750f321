"""Orders basic blocks such that diverged lanes reconverge as early as possible."""

from collections.abc import Iterator


def loops_together(successors: list[list[int]], count: int) -> list[int]:
    """Returns a weak topological order (Bourdoncle, 1993) of the blocks that are reachable from block 0.

    Loops are contiguous and start at their heads, so that lanes that are ahead wait for lanes that are behind.
    The successor `count` stands for the end of the program.
    """
    order: list[int] = []

    def lay(nodes: set[int], head: int) -> None:
        for part in _components(successors, nodes, [head], None):
            if len(part) == 1:
                order.append(part[0])
                continue
            first = part[0]  # the head of the loop is the block that is entered first
            order.append(first)
            rest = set(part) - {first}
            starts = [s for s in successors[first] if s in rest]
            for piece in _components(successors, rest, starts, first):
                if len(piece) == 1:
                    order.append(piece[0])
                else:
                    lay(set(piece), piece[0])

    lay(set(range(count)), 0)
    return order


def _components(successors: list[list[int]], nodes: set[int], roots: list[int], cut: int | None) -> list[list[int]]:
    """Returns strongly connected components in topological order, without the edges into `cut` (Tarjan, 1972)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[list[int]] = []

    def following(node: int) -> Iterator[int]:
        return iter([s for s in successors[node] if s in nodes and s != cut])

    def enter(node: int) -> tuple[int, Iterator[int]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        return node, following(node)

    for root in roots:
        if root in index:
            continue
        work = [enter(root)]
        while work:
            node, rest = work[-1]
            for s in rest:
                if s not in index:
                    work.append(enter(s))
                    break
                if s in stack:
                    low[node] = min(low[node], index[s])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    del stack[at:]
    return found[::-1]
