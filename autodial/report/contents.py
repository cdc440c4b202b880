"""What the report on one run says, section by section, with the figures and the tables behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

from autodial.evaluation.domains import sources_of
from autodial.report.data import Sizes
from autodial.report.evaluation import Absent, Evaluation
from autodial.report.figures import (
    CONFUSION_CLASSES,
    DRAWN_CURVES,
    SHOWN_CLASSES,
    draw_alphas_by_depth,
    draw_alphas_by_iteration,
    draw_class_shares,
    draw_confusion,
    draw_curves,
    draw_features,
    shown_confusion,
)
from autodial.report.images import ImagePair, PredictedImage, Thumbnail
from autodial.report.latent_domains import LatentDomains, count_domains
from autodial.report.page import Look, ShownImage, ShownPair, data_uri, short_path
from autodial.report.predictions import Floats, Predictions
from autodial.report.run import Curve, Recalls, Run
from autodial.report.style import figure_style
from autodial.report.words import curve_label, date, number, percent, scope
from autodial.report.writer import Report, Writer
from autodial.training.collapse import SHARE
from autodial.wording import counted

_ROWS = 40
"""Rows of a table of logged numbers."""
_OPEN_ROWS = 12
"""Rows of the longest table that is not folded."""
_TESTS = 8
"""Columns of a table of recalls: tests, evenly spaced from the first to the last."""
_CONFUSIONS = 10
"""Rows of the table of confusions."""
_RESUMED = 20
"""Resumed starts that the page lists."""
_NAMED = 5
"""Curves that a warning names at most."""
_SMALL = 64
"""Images up to this size, in pixels, are shown with hard pixels."""


def write_report(run: Run, evaluation: Evaluation) -> Report:
    """The report of a run."""
    writer = _RunWriter(run, evaluation)
    with figure_style():
        writer.head()
        writer.alphas()
        writer.training()
        writer.features()
        writer.class_balance()
        writer.confusion()
        writer.images()
    return writer.report(f"trained by {run.record['versions'].get('autodial', 'an unknown version')}")


class _RunWriter(Writer):
    """Writes the sections, in order."""

    def __init__(self, run: Run, evaluation: Evaluation) -> None:
        super().__init__(f"AutoDIAL: {run.name}")
        self.run, self.evaluation = run, evaluation
        self._alphas, self._resumed = run.alphas(), run.resumed_at

    # --- what was run

    def head(self) -> None:
        run, record = self.run, self.run.record
        variants = ", ".join(record["variants"]) or "the net as its prototxt has it"
        self.page.paragraph(f"{variants}, seed {record['seed']}, {date(run.starts[0])}", "under")
        self.page.key_numbers(self._key_numbers())
        for kind, note in self._notes():
            self.page.paragraph(note, kind)
        self.page.section("What was run")
        self.page.facts(self._facts())
        self.page.preformatted("The solver, with all settings applied", record["solver"])

    def _key_numbers(self) -> list[tuple[str, str]]:
        run, predictions = self.run, self.evaluation.predictions
        numbers = [(f"{run.reached:,} of {run.solver.max_iter:,}", "iterations logged")]
        if isinstance(predictions, Predictions):
            if predictions.accuracy is not None:
                what = f"accuracy on {len(predictions.labelled):,} labelled target images"
                numbers.append((f"{predictions.accuracy:.1%}", what))
                numbers.append((percent(predictions.balanced_accuracy), "balanced accuracy, the classes' mean recall"))
            share = "entropy of the mean target prediction, of log(classes)"
            numbers.append((f"{predictions.diversity:.1%}", share))
        else:
            numbers += [
                (percent(curve.last), f"test: {curve.name}, at iteration {curve.iterations[-1]:,}")
                for curve in run.accuracies()
                if curve.kind == "test"
            ]
        loss = run.loss()
        if loss.values:
            numbers.append((number(loss.last, ".4g"), f"loss at iteration {loss.iterations[-1]:,}"))
        last = [curve.last for curve in self._alphas if curve.last is not None]
        if last:
            numbers.append((f"{min(last):.3f} to {max(last):.3f}", f"alpha of {counted(len(last), 'Dial layer')}"))
        return numbers

    def _notes(self) -> list[tuple[Look, str]]:
        """What a reader should know before the numbers, as looks and texts of paragraphs."""
        run, snapshot = self.run, self.evaluation.snapshot
        notes: list[tuple[Look, str]] = []
        if not run.finished:
            notes.append(
                (
                    "note",
                    f"The log ends at iteration {run.reached:,} of {run.solver.max_iter:,}: the run is still going, or "
                    "was interrupted. The report shows what there was.",
                )
            )
        if self._resumed:
            places = ", ".join(f"{iteration:,}" for iteration in self._resumed[-_RESUMED:])
            places += f" (the last of {len(self._resumed):,} times)" if len(self._resumed) > _RESUMED else ""
            notes.append(("note", f"Resumed from iteration {places}; what had been logged beyond that is not shown."))
        if isinstance(snapshot, Absent):
            notes.append(("note", f"Without predictions and features: {snapshot.reason}."))
        elif not ((newest := snapshot.iteration == run.snapshots[0].iteration) and run.finished):
            notes.append(
                (
                    "note",
                    f"Predictions and features are those of the snapshot at iteration {snapshot.iteration:,}"
                    + ("." if newest else ", as the files of later ones are gone or changed."),
                )
            )
        notes += [("warning", note) for note in self._not_finite()]
        for alarm in run.collapses:
            notes.append(
                (
                    "warning",
                    f"At iteration {alarm['iteration']:,}, training raised the alarm that the target's predictions had "
                    f"collapsed: in front of layer {alarm['layer']}, their mean was spread over "
                    f"{number(alarm['in_use'])} of {alarm['classes']:,} classes, the source's labels over "
                    f"{number(alarm['in_source'])}.",
                )
            )
        return notes

    def _not_finite(self) -> Iterator[str]:
        """What was logged or predicted and is not a number."""
        curves = [self.run.loss(), *self.run.outputs()]
        lost = [iteration for curve in curves for iteration, value in curve.points() if value is None]
        if lost:
            names = list(dict.fromkeys(curve_label(curve) for curve in curves if None in curve.values))
            shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            yield (
                "Not finite (NaN or infinite), as in a training that diverged: "
                f"{counted(len(lost), 'logged value')} of {shown}, the first at iteration {min(lost):,}."
            )
        if tests := self.run.broken_tests:
            broken = tests[0]["not_finite"].items()
            parts = [f"{blob} for {bad:,} of {counted(rows, 'row')}" for blob, (bad, rows) in broken]
            yield (
                f"The scores of {counted(len(tests), 'test')} were not finite, first at iteration "
                f"{tests[0]['iteration']:,}, in blob {' and '.join(parts[:_NAMED])}: accuracies of such a test say "
                "nothing."
            )
        predictions = self.evaluation.predictions
        if isinstance(predictions, Predictions) and predictions.lost:
            images = counted(len(predictions.rows) + predictions.lost, "target image")
            yield (
                f"The scores of {predictions.lost:,} of {images} are not finite (NaN or infinite): the numbers below "
                "are those of the others."
            )

    def _facts(self) -> list[tuple[str, str]]:
        run, record, solver = self.run, self.run.record, self.run.solver
        snapshot, sizes = self.evaluation.snapshot, self.evaluation.sizes
        seconds = run.seconds
        starts = f" in {counted(len(run.starts), 'start')}" if len(run.starts) > 1 else ""
        facts = [
            ("Net", f"{run.name}, {self._described_alignment()}"),
            ("Variant", ", ".join(record["variants"]) or "none"),
            ("Settings", ", ".join(record["settings"]) or "none"),
            (
                "Solver",
                f"{solver.type}, base_lr {solver.base_lr:.6g}, lr_policy {solver.lr_policy}, momentum "
                f"{solver.momentum:.6g}, weight_decay {solver.weight_decay:.6g}, max_iter {solver.max_iter:,}",
            ),
            ("Data", _describe_sizes(sizes) if isinstance(sizes, Sizes) else f"sizes not known: {sizes.reason}"),
            ("Images per iteration", run.images_per_iteration),
            ("Seed", str(record["seed"])),
            ("Device", record["device"]),
            ("Started", date(run.starts[0])),
            ("Logged for", f"{timedelta(seconds=round(seconds))}{starts}" if seconds is not None else "not known"),
            ("Versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())),
            ("Command", record["command"]),
            ("In folder", record["folder"]),
            ("Run folder", str(run.folder.resolve())),
        ]
        if not isinstance(snapshot, Absent):
            facts.append(("Weights", f"{snapshot.model}, iteration {snapshot.iteration:,}"))
        return facts

    def _described_alignment(self) -> str:
        if domains := count_domains(self.run.train_net):
            return f"{domains} latent domains, no Dial layers"
        return counted(len(self._alphas), "Dial layer")

    # --- training

    def latent_domains(self) -> None:
        """The domains found among the source's images, in place of alphas."""
        self.page.section("Latent domains of the source")
        domains = self.evaluation.domains
        if not isinstance(domains, LatentDomains):
            why = self.evaluation.snapshot if isinstance(self.evaluation.snapshot, Absent) else domains
            self.absent("No weights of the domains", why or Absent("the target's images could not be run"))
            return
        self.page.table(
            "Each domain's part of the source",
            ["domain", "mean weight", "images that belong to it most"],
            [
                [str(place), f"{share:.1%}", f"{count:,}"]
                for place, (share, count) in enumerate(zip(domains.shares, domains.counts, strict=True), 1)
            ],
        )
        shown = counted(len(domains.weights), "source image")
        some = f"{shown} of {domains.total:,}, evenly spaced" if len(domains.weights) < domains.total else shown
        self.page.paragraph(
            f"Over {some}. The net has no alpha: layers of each domain normalize the source's images by these weights, "
            "and layers of their own the target's. If one domain has nearly all weight, the net has found one alone."
        )
        for place, (images, weights) in enumerate(zip(domains.images, domains.weights.T, strict=True), 1):
            self.page.heading(f"Domain {place}: the source images with the largest weights in it")
            lines = [f"{weight:.1%}" for weight in np.sort(weights)[::-1][: len(images)]]
            self.page.images(
                [
                    ShownImage(_uri(image), f"{short_path(image.path)}: weight {line}", [line], image.path)
                    for image, line in zip(images, lines, strict=True)
                ],
                pixels=_are_small(images),
            )

    def alphas(self) -> None:
        if count_domains(self.run.train_net):
            self.latent_domains()
            return
        self.page.section("Alpha of the Dial layers")
        curves = self._alphas
        if not curves:
            why = "nothing was logged yet" if self.run.dials else "the net has no Dial layer"
            self.absent("No alphas", Absent(why))
            return
        joint = 1 / (1 + sources_of(self.run.train_net))
        last = [np.nan if curve.last is None else curve.last for curve in curves]
        half = (len(last) + 1) // 2
        halves = (
            f" Mean over the lower half of the layers: {np.mean(last[:half]):.3f}, over the upper half: "
            f"{np.mean(last[-half:]):.3f}."
            if len(last) > 1
            else ""
        )
        self.figure(
            "alpha-by-depth",
            partial(draw_alphas_by_depth, curves, joint=joint),
            f"Alpha of {counted(len(curves), 'Dial layer')} by depth, from {last[0]:.3f} at the input to "
            f"{last[-1]:.3f} at the output.{halves} The table below has every value.",
            "Alpha by layer depth. At 1 each domain is normalized with statistics of its own, at "
            f"{joint:.3g} all with joint ones. "
            f"The paper finds values nearer 1 in lower layers.{halves}",
        )
        many = (
            "" if len(curves) <= 8 else " Each row of the map is a layer, the input's at the top; brighter is nearer 1."
        )
        self.figure(
            "alpha-by-iteration",
            partial(draw_alphas_by_iteration, curves, self._resumed, joint=joint),
            f"Alpha by iteration, up to {curves[0].iterations[-1]:,}. {_describe_range(curves)}",
            f"Alpha by iteration.{many}",
        )
        self.page.table(
            "Alpha of each Dial layer",
            ["layer", "depth", f"iteration {curves[0].iterations[0]:,}", f"iteration {curves[0].iterations[-1]:,}",
             "lowest", "highest"],
            [
                [curve.name, str(depth), *(number(value, ".4f") for value in (curve.values[0], curve.last)),
                 *(number(limit, ".4f") for limit in _limits(curve))]
                for depth, curve in enumerate(curves, start=1)
            ],
            folded=len(curves) > _OPEN_ROWS,
        )  # fmt: skip

    def training(self) -> None:
        run = self.run
        self.page.section("Losses, accuracies and learning rate")
        loss, rate = run.loss(), run.learning_rate()
        losses, accuracies = run.losses(), [*run.accuracies(), *run.balanced_accuracies()]
        if not loss.values and not losses and not accuracies:
            self.absent("No curves", Absent("nothing was logged yet"))
            return
        total = [Curve("total", "train", None, loss.iterations, loss.values)] if loss.values else []
        weights = "The total is the sum of the training losses by their weights"
        averaged = f", averaged over {run.solver.average_loss} iterations" if run.solver.average_loss > 1 else ""
        if losses or total:
            self._curves("losses", [*losses, *total], "loss", f"Losses by iteration. {weights}{averaged}.")
        if accuracies:
            self._curves("accuracies", accuracies, "accuracy", "Accuracies by iteration.", percent=True)
        if diversity := run.diversity():
            self._curves(
                "diversity",
                diversity,
                "diversity",
                "Diversity of the target's predictions in training: the entropy of their running mean as a share of "
                "that of the source's labels. Near 0 all images get the same class; below the dotted line training "
                "warns of a collapse.",
                floor=SHARE,
            )
        if rate.values:
            finite = [value for value in rate.values if value]
            self._curves(
                "learning-rate",
                [Curve("lr", "train", None, rate.iterations, rate.values)],
                "learning rate",
                "The solver's learning rate, before any lr_mult.",
                log=bool(finite) and max(finite) > 30 * min(finite),
            )
        self._log_table("Training", "train", [rate, *total, *(curve for curve in losses + accuracies)])
        self._log_table("Tests", "test", losses + accuracies)
        for recalls in run.recalls():
            self._recall_table(recalls)

    def _curves(self, name: str, curves: Sequence[Curve], ylabel: str, caption: str, **options: Any) -> None:
        thinned = " Long curves are drawn as means of neighbours." if max(len(c.values) for c in curves) > 300 else ""
        if len(curves) > DRAWN_CURVES:
            thinned += f" Of {len(curves):,} curves, the first {DRAWN_CURVES}; the tables have all."
            curves = curves[:DRAWN_CURVES]
        lost = sum(value is None for curve in curves for value in curve.values)
        crosses = f" Crosses at the top: {counted(lost, 'value')} not finite (NaN or infinite)." if lost else ""
        self.figure(
            name,
            partial(draw_curves, curves, self._resumed, ylabel=ylabel, **options),
            f"{caption} {_describe_range(curves)}{crosses}",
            caption + thinned + crosses,
        )

    def _log_table(self, title: str, kind: str, curves: Sequence[Curve]) -> None:
        curves = [curve for curve in curves if curve.kind == kind]
        iterations = sorted({iteration for curve in curves for iteration in curve.iterations})
        if not iterations:
            return
        columns = [dict(zip(curve.iterations, curve.values, strict=True)) for curve in curves]
        step = -(-len(iterations) // _ROWS)
        shown = sorted({*iterations[::step], iterations[-1]})
        every = f", one logged iteration in {step}, and the last; log.jsonl has all" if step > 1 else ""
        self.page.table(
            f"{title}: logged numbers{every}",
            ["iteration", *(curve_label(curve) for curve in curves)],
            [
                [f"{iteration:,}", *(number(values[iteration]) if iteration in values else "" for values in columns)]
                for iteration in shown
            ],
            folded=True,
        )

    def _recall_table(self, recalls: Recalls) -> None:
        """A row per class, a column for each of some tests."""
        count = len(recalls.iterations)
        shown = sorted({i * (count - 1) // max(1, min(count, _TESTS) - 1) for i in range(min(count, _TESTS))})
        classes = min(len(recalls.values[i]) for i in shown)
        names = self.evaluation.classes if len(self.evaluation.classes) == classes else [str(k) for k in range(classes)]
        self.page.table(
            f"Tests: recall of each class by {recalls.name}",
            ["class", *(f"iteration {recalls.iterations[i]:,}" for i in shown)],
            [
                [name, *("" if (value := recalls.values[i][k]) is None else f"{value:.1%}" for i in shown)]
                for k, name in enumerate(names)
            ],
            folded=True,
        )

    # --- the target

    def features(self) -> None:
        self.page.section("Features of source and target, before and after alignment")
        features = self.evaluation.features
        if isinstance(features, Absent):
            self.absent("No features", features)
            return
        for layer in features:
            self.figure(
                f"features-{self._file_name(layer.layer)}",
                partial(draw_features, layer),
                f"Histograms of {counted(len(layer.channels), 'channel')} of layer {layer.layer}, source and target. "
                f"The domains are {layer.before:.3f} apart before the layer and {layer.after:.3f} after it.",
                f"Features in front of and behind {layer.layer}, the highest and lowest 0.5% of the values cut off. "
                "Channels from the one whose stored means differ most between the domains to the one in the middle.",
            )
        self.page.table(
            "How far the domains are apart",
            ["layer", "alpha", "before", "after"],
            [[layer.layer, f"{layer.alpha:.4f}", f"{layer.before:.4f}", f"{layer.after:.4f}"] for layer in features],
        )
        self.page.paragraph(
            "Images are prepared as in the TEST phase, and go through every Dial layer with the stored statistics of "
            "their domain. Distances are sqrt((difference of means)\N{SUPERSCRIPT TWO} + (difference of "
            "deviations)\N{SUPERSCRIPT TWO}), averaged over all channels: before, in deviations of an even mixture of "
            "both domains; after, in units of the layer's output. At alpha 1 an exact alignment leaves 0, at "
            f"{1 / (1 + sources_of(self.run.train_net)):.3g} all domains go through the same transform, and what is "
            "apart stays apart."
        )

    def _file_name(self, layer: str) -> str:
        """A layer's name as part of a file name, different for each layer."""
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in layer)[:60]
        taken = f"features-{name}" in self.figures
        return f"{name}-{len(self.figures)}" if taken else name

    def class_balance(self) -> None:
        self.page.section("Class balance")
        predictions, source = self.evaluation.predictions, self.evaluation.source_shares
        if isinstance(predictions, Absent):
            self.absent("No predictions", predictions)
            return
        names = self.evaluation.classes
        shares: dict[str, Floats] = {"mean prediction on the target": predictions.mean}
        if isinstance(source, Absent):
            self.absent("Without the source's labels", source)
        else:
            shares = {"source labels": source, **shares}
        confusion = predictions.confusion()
        if confusion.any():
            shares["target labels"] = confusion.sum(1) / confusion.sum()
        limited = (
            f" Of {len(names):,} classes, the {SHOWN_CLASSES} in which they differ most."
            if len(names) > SHOWN_CLASSES
            else ""
        )
        self.figure(
            "class-balance",
            partial(draw_class_shares, names, shares),
            f"Shares of {counted(len(names), 'class', 'classes')}: {', '.join(shares)}. The table below has every one.",
            f"Class shares: {', '.join(shares)}. The prediction is over "
            f"{scope(predictions)}.{limited} Its entropy is {predictions.diversity:.1%} of log(classes); a mean "
            "prediction on few classes is a collapse, unless the target is so.",
        )
        rows, recalls = [], predictions.recalls()
        for i, name in enumerate(names):
            true = confusion[i].sum()
            recall = [f"{true:,}", f"{recalls[i]:.1%}" if true else ""] if confusion.any() else []
            rows.append([name, *(f"{values[i]:.2%}" for values in shares.values()), *recall])
        labelled = ["target images", "recall"] if confusion.any() else []
        self.page.table("By class", ["class", *shares, *labelled], rows, folded=len(names) > _OPEN_ROWS)

    def confusion(self) -> None:
        self.page.section("Confusion matrix of the target")
        predictions, names = self.evaluation.predictions, self.evaluation.classes
        if isinstance(predictions, Absent):
            self.absent("No predictions", predictions)
            return
        if predictions.unlabelled is not None:
            self.absent("No target labels to compare with", Absent(predictions.unlabelled))
            return
        counts = predictions.confusion()
        limited = (
            f" Of {len(names):,} classes, the {CONFUSION_CLASSES - 1} with the most errors have a row; the last row "
            "and column are all others together."
            if len(names) > CONFUSION_CLASSES
            else ""
        )
        right = int(np.trace(counts))
        self.figure(
            "confusion",
            partial(draw_confusion, names, shown_confusion(counts)),
            f"Confusion matrix: {right:,} of {counts.sum():,} images are on its diagonal. The table below has the most "
            "frequent confusions.",
            f"Rows are true classes, columns predicted ones, numbers images, colours shares of the row; "
            f"{scope(predictions)}. Target labels serve to score alone.{limited}",
        )
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS]
        pairs = [np.unravel_index(place, wrong.shape) for place in order]
        rows = [
            [names[int(true)], names[int(predicted)], f"{wrong[true, predicted]:,}",
             f"{wrong[true, predicted] / counts[true].sum():.1%}"]
            for true, predicted in pairs
            if wrong[true, predicted]
        ]  # fmt: skip
        if rows:
            self.page.table(
                "The most frequent confusions", ["true class", "predicted as", "images", "of the true class"], rows
            )

    def images(self) -> None:
        self.page.section("Images of source and target")
        evaluation, predictions = self.evaluation, self.evaluation.predictions
        if isinstance(evaluation.pairs, Absent):
            self.absent("No images of the source", evaluation.pairs)
        elif evaluation.pairs:
            self.page.heading("By class: a source image, and the target image that got the class with most certainty")
            shown = [pair.source for pair in evaluation.pairs]
            self.page.pairs([self._pair(pair) for pair in evaluation.pairs], pixels=_are_small(shown))
        for heading, images in (
            ("The most certain target images", evaluation.certain),
            ("The least certain target images", evaluation.uncertain),
        ):
            if isinstance(images, Absent):
                self.absent("No images of the target", images)
                return
            if images:
                self.page.heading(heading)
                small = _are_small([image.image for image in images])
                self.page.images([self._shown(image) for image in images], pixels=small)
        assert isinstance(predictions, Predictions)
        self.page.paragraph(
            "Images are shown as the net gets them, resized and cropped. Certain means a large probability of the "
            f"predicted class, among {scope(predictions)}."
        )

    def _pair(self, pair: ImagePair) -> ShownPair:
        name = self.evaluation.classes[pair.label]
        path = pair.source.path
        left = ShownImage(_uri(pair.source), f"{short_path(path)}: source, {name}", ["source"], path)
        right = self._shown(pair.target) if pair.target else "no target image got this class"
        return ShownPair(name, left, right)

    def _shown(self, image: PredictedImage) -> ShownImage:
        row, names = image.row, self.evaluation.classes
        assert isinstance(self.evaluation.predictions, Predictions)
        order = np.argsort(-row.probabilities, kind="stable")
        second = next((int(i) for i in order if int(i) != row.predicted), None)
        lines = [f"{names[row.predicted]}, {row.probabilities[row.predicted]:.1%}"]
        if second is not None:
            lines.append(f"then {names[second]}, {row.probabilities[second]:.1%}")
        if self.evaluation.predictions.unlabelled is None and row.label is not None and row.loss is not None:
            right = row.label == row.predicted
            mark = "\N{CHECK MARK} right" if right else f"\N{BALLOT X} is {names[row.label]}"
            lines.append(mark)
        alt = f"{short_path(row.path)}: predicted {', '.join(lines)}"
        return ShownImage(_uri(image.image), alt, lines, row.path)


def _uri(image: Thumbnail) -> str:
    return data_uri(image.data, image.media_type)


def _are_small(images: Sequence[Thumbnail]) -> bool:
    return max(max(image.size) for image in images) <= _SMALL


def _describe_sizes(sizes: Sizes) -> str:
    counts: Mapping[str, int | None] = {
        "source": sizes.source, "target": sizes.target, "TEST phase": sizes.test
    }  # fmt: skip
    return ", ".join(f"{what} {count:,}" for what, count in counts.items() if count is not None) + " images"


def _limits(curve: Curve) -> tuple[float | None, float | None]:
    finite = [value for value in curve.values if value is not None]
    return (min(finite), max(finite)) if finite else (None, None)


def _describe_range(curves: Sequence[Curve]) -> str:
    """The first and last value of each curve, for alternative texts; many curves are counted."""
    if len(curves) > 8:
        return f"{len(curves)} curves; the table has their values."
    return " ".join(
        f"{curve_label(curve)}: from {number(curve.values[0])} to {number(curve.last)}." for curve in curves
    )
