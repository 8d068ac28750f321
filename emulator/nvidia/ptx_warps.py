"""PTX instructions that synchronize lanes or exchange values between them, and instructions without an effect."""

from .ptx_operands import Operands


class Warps(Operands):
    """Translates warp-level instructions: has a method per opcode."""

    def do_ret(self, modifiers: list[str], values: list[str]) -> None:
        self.row("ret")

    do_exit = do_ret

    def do_trap(self, modifiers: list[str], values: list[str]) -> None:
        self.row("trap")

    def do_nop(self, modifiers: list[str], values: list[str]) -> None:
        self.row("nop")

    do_membar = do_fence = do_nanosleep = do_griddepcontrol = do_prefetch = do_pragma = do_nop

    def do_bar(self, modifiers: list[str], values: list[str]) -> None:
        if "warp" in modifiers:
            self.row("bar", size=1)
        elif "red" in modifiers:
            flag = {"popc": 1, "and": 2, "or": 3}[modifiers[modifiers.index("red") + 1]]
            predicate = values[-1]
            places = self.use(values[0], 4), self.use(predicate.lstrip("!"), 0)
            self.row("bar", *places, flag=flag, count=int(predicate[0] == "!"))
        else:
            self.row("bar")

    do_barrier = do_bar

    def do_shfl(self, modifiers: list[str], values: list[str]) -> None:
        target, _, in_range = values[0].partition("|")
        places = [self.use(target, 4), *(self.use(x, 4) for x in values[1:5])]
        flag = {"up": 0, "down": 1, "bfly": 2, "idx": 3}[modifiers[2]]
        self.row("shfl", *places, self.use(in_range, 0) if in_range else -1, flag=flag)

    def do_vote(self, modifiers: list[str], values: list[str]) -> None:
        flag = {"any": 0, "all": 1, "uni": 2, "ballot": 3}[modifiers[2]]
        predicate = values[1]
        places = self.use(values[0], 4), self.use(predicate.lstrip("!"), 0), self.use(values[2], 4)
        self.row("vote", *places, flag=flag, count=int(predicate[0] == "!"))

    def do_activemask(self, modifiers: list[str], values: list[str]) -> None:
        self.row("activemask", self.use(values[0], 4))

    def do_redux(self, modifiers: list[str], values: list[str]) -> None:
        flag = {"add": 0, "min": 1, "max": 2, "and": 5, "or": 6, "xor": 7}[modifiers[2]]
        if modifiers[-1] == "u32" and flag in (1, 2):
            flag += 2
        self.row("redux", *(self.use(x, 4) for x in values), flag=flag)
