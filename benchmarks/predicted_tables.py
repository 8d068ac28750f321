"""Further tables of predictions in docs/performance.md: idle tails and memory, sensitivity, and AMD GPUs."""

from typing import Any

PASSES = ("forward", "backward")
OLD = "tsplat 66fcafc"


def details_table(records: list[dict[str, Any]]) -> str:
    """Returns idle tails and bytes kept for the backward pass of tsplat's records as a Markdown table."""
    found = {(r["scene"], r["gpu"], r["pass"]): r for r in records if "kept_bytes" in r}
    lines = ["| scene | idle tail, A100, % | idle tail, H100, % | kept, MB |", "| --- | ---: | ---: | ---: |"]
    for scene in dict.fromkeys(scene for scene, _, _ in found):
        tails = [
            " / ".join(f"{100 * found[scene, gpu, phase]['idle_tail']:.0f}" for phase in PASSES)
            for gpu in ("a100", "h100")
        ]
        kept = found[scene, "a100", "forward"]["kept_bytes"]
        lines.append(f"| {scene} | {' | '.join(tails)} | {kept / 1e6:.1f} |")
    return "\n".join(lines) + "\n"


def sensitivity_table(records: list[dict[str, Any]]) -> str:
    """Returns predicted microseconds of forward + backward by variation of the model and scene as a Markdown table."""
    total: dict[tuple[str | None, str], float] = {}
    for r in records:
        key = r["variation"], r["scene"]
        total[key] = total.get(key, 0.0) + r["predicted_us"]
    scenes = list(dict.fromkeys(scene for _, scene in total))
    lines = [f"| changed | {' | '.join(scenes)} |", "| --- |" + " ---: |" * len(scenes)]
    for variation in dict.fromkeys(variation for variation, _ in total):
        values = [total[variation, scene] for scene in scenes]
        cells = [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values]
        lines.append(f"| {variation or 'nothing'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def amd_table(records: list[dict[str, Any]]) -> str:
    """Returns executed instructions on AMD GPUs, and their ratios to an earlier commit's, as a Markdown table."""
    found = {(r["target"], r["scene"], r["pass"], r.get("implementation")): r["warp_instructions"] for r in records}
    targets = list(dict.fromkeys(target for target, _, _, _ in found))
    names = [f"{target}, {what}" for target in targets for what in ("million", f"divided by {OLD}")]
    lines = [f"| scene | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for scene in dict.fromkeys(scene for _, scene, _, _ in found):
        cells = []
        for target in targets:
            now, before = ([found[target, scene, phase, of] for phase in PASSES] for of in (None, OLD))
            cells.append(" + ".join(f"{count / 1e6:,.1f}" for count in now))
            each = " / ".join(f"{a / b:.2f}" for a, b in zip(now, before))
            cells.append(f"{each}, both {sum(now) / sum(before):.2f}")
        lines.append(f"| {scene} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
