"""Draw architecture.svg, the rooms of the package from top to ground: `python docs/architecture.py`."""

from __future__ import annotations

from pathlib import Path

FLOORS = [
    [("cli", "the command line's table", 1)],
    [("commands", "one module per command", 1)],
    [("comparison", "methods side by side", 1), ("demo", "the whole story on digits", 1)],
    [("report", "a run as a page", 1), ("project", "what init does", 1)],
    [("selection", "settings, chosen", 1), ("converters", "dialize, fold, destinations", 1)],
    [("caffe", "pycaffe", 1), ("evaluation", "scores, statistics, times", 1)],
    [("training", "solvers, ranks, logs", 1)],
    [("net", "a NetParameter as a torch module", 1)],
    [("layers", "one module per family, a registry", 1)],
    [("netparam", "a net as a message; no torch", 1), ("deploy", "predictor, tables; no torch", 1)],
    [("data", "lists, decoding, transforms; no torch", 1)],
    [("proto", "messages, text, binary, HDF5; no torch", 2), ("model_file", "the exported file's contract", 1)],
    [("system", "files, devices, processes", 1)],
    [("errors, wording", "the ground", 1)],
]
WIDTH, HEIGHT, GAP = 640, 42, 8


def box(x: float, y: float, width: float, name: str, what: str) -> str:
    middle = x + width / 2
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="5" fill="#eef3fa" stroke="#4a6fa5"/>'
        f'<text x="{middle:g}" y="{y + 17:g}" font-weight="bold">{name}</text>'
        f'<text x="{middle:g}" y="{y + 33:g}" font-size="11">{what}</text>'
    )


def draw() -> str:
    parts, y = [], GAP
    for floor in FLOORS:
        unit = (WIDTH - GAP * (len(floor) - 1)) / sum(share for *_, share in floor)
        x = float(GAP)
        for name, what, share in floor:
            parts.append(box(x, y, unit * share, name, what))
            x += unit * share + GAP
        y += HEIGHT + GAP
    style = 'font-family="sans-serif" font-size="14" text-anchor="middle" fill="#1b2a41"'
    title = "<title>The rooms of the package; each imports only from rooms below it</title>"
    size = f'viewBox="0 0 {WIDTH + 2 * GAP} {y}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{title}\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw(), "utf-8")
