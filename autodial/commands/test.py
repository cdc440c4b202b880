"""The command `autodial test`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.inputs import read_net, split_names
from autodial.commands.options import (
    DeviceOption,
    JsonOption,
    LevelOption,
    LogitsOption,
    SettingsOption,
    StageOption,
    TestNetOption,
    VariantOption,
    WeightsOption,
    WorkersOption,
    naming_options,
    with_options,
)
from autodial.commands.progress import tracked
from autodial.errors import InputError, WorkError
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.proto import messages as pb

_OPTIONS = {"iterations": "--iterations", "output": "-o", "logits": "--logits", "settings": "--set"}
"""The options of parameters that messages name."""


def test(
    net: TestNetOption,
    weights: WeightsOption,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="SCORES.csv", help="Also write a table with a row per image."),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Run this number of whole batches, as `caffe test` does.",
            show_default="every image once",
        ),
    ] = None,
    logits: LogitsOption = None,
    device: DeviceOption = "auto",
    settings: SettingsOption = None,
    variants: VariantOption = None,
    level: LevelOption = 0,
    stage: StageOption = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a trained net on every image of its test list.

    Prints each output of the TEST phase (accuracies, losses), averaged over the images, with the balanced accuracy and
    the recall of each class: the share of its images that get this class. SCORES.csv has the columns
    path, label, predicted, loss (-log of the label's probability), and probability_0, probability_1, ... for the
    classes. NaN or infinite scores are reported, with exit status 1; everything else is printed and written anyway.
    """
    import json
    import time

    from autodial import proto
    from autodial.evaluation.scoring import Scorer, why_no_rows, write_scores
    from autodial.net.data_checks import check_data
    from autodial.net.feed import default_workers
    from autodial.net.net import Net, of_another_net
    from autodial.netparam.data_files import files_of
    from autodial.system.devices import choose_device, warn_of_cpu
    from autodial.system.json_files import finite
    from autodial.system.outputs import check_output
    from autodial.training.console import describe_output
    from autodial.training.recall import balanced_accuracy, describe_recall
    from autodial.training.score_watch import describe
    from autodial.training.solver import load_weights

    param = read_net(net, variants, settings, level, stage)
    if output is not None:
        check_output(output, (net, *split_names(weights), *files_of(param, net.parent)), suffixes=[".csv"])
    chosen = choose_device(device)
    try:
        built = Net(param, proto.messages.TEST, base_dir=net.parent).to(chosen)
        scores, unscored = _find_logits(param, logits, required=output is not None)
    except InputError as error:
        raise InputError(f"{net}, TEST phase: {error}") from error
    if missing := load_weights(built, split_names(weights), whole=param, advice=of_another_net(str(net))):
        raise InputError(f"{weights} has nothing for {', '.join(missing)}: name the weights from this net's training")
    if unstored := built.without_statistics():
        typer.echo(f"{', '.join(unstored)} have no statistics stored: train the net first", err=True)
    check_data(built)

    if scores is not None and output is None and logits is None and (unscored := why_no_rows(built, scores)):
        scores = None  # nobody asked for the rows
    started = time.perf_counter()
    try:
        with naming_options(**_OPTIONS):
            scorer = Scorer(
                built,
                device=chosen,
                workers=default_workers() if workers is None else workers,
                iterations=iterations,
                logits=scores,
            )
    except InputError as error:
        raise InputError(f"{net}: {error}") from error
    warn_of_cpu(device, chosen)
    with naming_options(workers="--workers"):
        for _ in tracked(scorer.run(), "testing", scorer.batches):
            pass
    means = scorer.means()
    if not means:
        unscored = unscored if scores is None else scorer.why_no_accuracy()
    seconds = time.perf_counter() - started
    if as_json:
        record = {
            "net": str(net),
            "weights": split_names(weights),
            "settings": settings or [],
            "outputs": {name: values[0] if len(values) == 1 else values for name, values in means.items()},
            "images": len(scorer.rows) if scores is not None else None,
            "accuracy": scorer.accuracy(),
            "balanced_accuracy": {blob: balanced_accuracy(recall) for blob, recall in scorer.recalls.items()},
            "recalls": scorer.recalls,
            "not_finite": scorer.not_finite,
            "device": str(chosen),
            "seconds": seconds,
        }
        typer.echo(json.dumps(finite(record), indent=2, allow_nan=False))
    else:
        for name, values in means.items():
            typer.echo(describe_output(name, values, built.loss_weights.get(name, 0.0)))
        for blob, recall in scorer.recalls.items():
            typer.echo(describe_recall(blob, recall, net.parent))
        if scores is not None:
            accuracy = None if means.keys() & _accuracies(param, scores) else scorer.accuracy()
            over_them = "" if accuracy is None else f": accuracy over them = {accuracy:.6g}"
            typer.echo(f"{counted(len(scorer.rows), 'image')} in {seconds:.1f} s{over_them}")
    if output is not None:
        write_scores(scorer.rows, output)
    if not means and unscored is not None:
        typer.echo(f"There is no score: {with_options(unscored, _OPTIONS)}", err=True)
    if scorer.not_finite:
        raise WorkError(f"{weights}: {describe(scorer.not_finite)}: the training diverged, or the file is damaged")


def _find_logits(param: pb.NetParameter, blob: str | None, *, required: bool) -> tuple[str, None] | tuple[None, str]:
    """The blob that the TEST phase reads as class scores; unless `required`, None and why if there is not just one."""
    from autodial.netparam.graph import Graph
    from autodial.netparam.net_state import filter_net
    from autodial.proto import messages as pb

    graph = Graph(filter_net(param, pb.TEST).layer)
    try:
        value = graph.logits(blob)
    except InputError as error:
        if required or blob is not None:
            raise
        return None, str(error)
    name = str(graph.names[value])
    if graph.last(name) != value:
        raise InputError(f'a layer overwrites blob "{name}", the logits, in place; give its top another name')
    return name, None


def _accuracies(param: pb.NetParameter, scores: str) -> set[str]:
    """The tops of the TEST phase's Accuracy layers that measure the top-1 accuracy of these scores."""
    from autodial.netparam.graph import Graph
    from autodial.netparam.net_state import filter_net
    from autodial.proto import messages as pb

    graph = Graph(filter_net(param, pb.TEST).layer)
    read = {graph.last(scores)}
    read.update(
        top for node in graph.nodes if node.param.type == "Softmax" for top in node.tops if read & {*node.bottoms}
    )
    return {
        node.param.top[0]
        for node in graph.nodes
        if node.param.type == "Accuracy" and node.param.accuracy_param.top_k == 1 and node.bottoms[0] in read
    }
