"""A domain's images and their classes, from class folders, flat folders or lists."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autodial.data.folders import IMAGE_SUFFIXES, identity, is_hidden, is_image, walk
from autodial.data.image_list import ImageList, read_paths
from autodial.data.labels import has_control_character, read_labels, tell_apart
from autodial.data.paths import find
from autodial.errors import InputError

_NAMED = 5
"""Names that a message spells out."""


class Image(NamedTuple):
    """One image.

    Attributes:
        path: absolute, as the lists of a project state it.
        label: number of its class, None where that is unknown or of no use.
    """

    path: str
    label: int | None


@dataclass(frozen=True)
class Domain:
    """The images of one domain.

    Attributes:
        role: "source", "target" or "test".
        origin: the folder or list, as the user named it.
        images: in the order of their lists; class by class, and by path, where they come from a folder.
        ignored: number of files in the folder that are hidden or no images.
        notes: what the user should know, a sentence each.
    """

    role: str
    origin: Path
    images: tuple[Image, ...]
    ignored: int = 0
    notes: tuple[str, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether the classes are known."""
        return all(image.label is not None for image in self.images)

    def counts(self, classes: int) -> list[int]:
        """The number of images of each class."""
        counts = [0] * classes
        for image in self.images:
            if image.label is not None:
                counts[image.label] += 1
        return counts


def read_source(origin: Path) -> tuple[list[str], Domain]:
    """The names of the classes, and the labelled images that are trained on.

    The classes of a folder are the folders in it, sorted by name; an image belongs to the one that it lies in, however
    deep. Names are in Unicode's form C, so that a folder copied from a Mac has the name of the same folder elsewhere.
    Those of a list are named by the labels.txt beside it, if that names as many, or else by their numbers.

    Raises:
        InputError: naming the folder or line: nothing that can be read, images outside of class folders, a class
            without images, a label that is left out, or a name that no list can hold.
    """
    if origin.is_dir():
        return _source_folder(origin)
    images = _read_labelled_list(origin)
    count = 1 + max(image.label or 0 for image in images)
    domain = Domain("source", origin, tuple(images))
    for label, number in enumerate(domain.counts(count)):
        if not number:
            raise InputError(
                f"{origin}: no image has label {label}, and labels go up to {count - 1}: number the classes from 0 on, "
                "without gaps"
            )
    if count < 2:
        raise InputError(f"{origin} has images of one class alone: there is nothing to tell apart with less than two")
    names, notes = _names_beside(origin, count)
    return names, Domain("source", origin, domain.images, notes=tuple(notes))


def read_target(origin: Path, classes: Sequence[str], *, measured: bool) -> Domain:
    """The images of the target domain, which are trained on without labels.

    Labels are kept only where they serve to measure accuracy: if there is no test list, and the folder consists of
    class folders by the source's names. Any other folder is taken whole, and so is a list, whose labels may be
    placeholders.

    Args:
        classes: of the source.
        measured: whether there is a test list.

    Raises:
        InputError: nothing that can be read, no images, a name that no list can hold; or, unless `measured`, class
            folders of which one is no class of the source, or images beside them.
    """
    if not origin.is_dir():
        paths = _locate([(name, str(origin)) for name in read_paths(_existing(origin))], origin)
        if not paths:
            raise InputError(f"{origin} lists no images: write a path on each line")
        return _domain("target", origin, [Image(path, None) for path in paths])
    tree = _read_folder(origin)
    known, unknown = _match(tree, classes)
    notes = list(tree.notes)
    if not measured and known:
        if unknown or tree.loose:
            other = f"the folder {unknown[0]}{_closest(unknown[0], classes)}" if unknown else Path(tree.loose[0]).name
            raise InputError(
                f"{origin} has folders of the source's classes, and beside them {other}, which is none: rename it or "
                "move it away, or name the images to measure accuracy on with --test"
            )
        images = [Image(path, label) for folder, label in known.items() for path in tree.folders[folder]]
        notes += _missing("target", images, classes)
        return _domain("target", origin, sorted(images, key=_by_label), tree.ignored, notes)
    if not measured and (near := [folder for folder in unknown if _closest(folder, classes, alike=True)]):
        raise InputError(
            f"{origin} has a folder {near[0]}{_closest(near[0], classes, alike=True)}: give the folders the very names "
            "of the source's classes"
        )
    if unknown:
        notes.append(
            f"The folders in {origin} ({_few(unknown)}) are none of the source's classes; all images in them are taken "
            "as unlabelled."
        )
    paths = sorted([*tree.loose, *(path for folder in tree.folders.values() for path in folder)])
    if not paths:
        raise InputError(f"{origin}: no image in this folder or below it (images are {', '.join(IMAGE_SUFFIXES)})")
    return _domain("target", origin, [Image(path, None) for path in paths], tree.ignored, notes)


def read_test(origin: Path, classes: Sequence[str]) -> Domain:
    """The labelled images that accuracy is measured on.

    Raises:
        InputError: nothing that can be read, no images, images outside of class folders, a class that the source does
            not have, or a name that no list can hold.
    """
    if not origin.is_dir():
        images = _read_labelled_list(origin, len(classes))
        return _domain("test", origin, images, notes=_missing("test", images, classes))
    tree = _read_folder(origin)
    _check_in_folders(tree, origin)
    known, unknown = _match(tree, classes)
    if unknown:
        raise InputError(
            f"{origin}: the folder {unknown[0]} is no class of the source{_closest(unknown[0], classes)}: rename it or "
            "move it away"
        )
    images = [Image(path, label) for folder, label in known.items() for path in tree.folders[folder]]
    if not images:
        raise InputError(f"{origin} has no images in folders named like the source's classes ({_few(classes)})")
    notes = [*tree.notes, *_missing("test", images, classes)]
    return _domain("test", origin, sorted(images, key=_by_label), tree.ignored, notes)


def shown(name: str) -> str:
    """A path or name as a message can show it, in one line whatever its bytes."""
    return name if name.isprintable() else ascii(name)


# --- folders


@dataclass
class _Tree:
    """What is in a folder: images by the folder in it that they lie in, images in none, and the rest."""

    folders: dict[str, list[str]]
    loose: list[str]
    ignored: int
    notes: list[str]


def _read_folder(origin: Path) -> _Tree:
    """Everything in a folder; the paths are absolute."""
    top = origin.resolve()
    try:
        names = sorted(path.name for path in top.iterdir())
    except OSError as error:
        raise InputError(f"{origin}: can't list this folder: {error.strerror}") from None
    inner = {name: identity(top / name) for name in names if (top / name).is_dir() and not is_hidden(name)}
    above = {identity(folder) for folder in (top, *top.parents)}
    for i, name in enumerate(inner):
        if inner[name] in above:
            raise InputError(f"{origin / shown(name)} is a link to a folder that it lies in: remove the link")
        for other in list(inner)[:i]:
            if inner[name] == inner[other]:
                raise InputError(
                    f"{origin}: {shown(other)} and {shown(name)} are the same folder under two names: remove the link"
                )
    files = {name for name in names if name not in inner and not (top / name).is_dir()}
    tree = _Tree({}, [], 0, [])
    tree.loose = _images(tree, (str(top / name) for name in sorted(files)))
    left_out: list[str] = []
    for name, own in inner.items():
        # so that a link from one class to another, or to what holds them all, brings no images to the wrong class
        without = above.union(inner.values()) - {own}
        tree.folders[name] = _images(tree, walk(top / name, without=without, skipped=left_out.append))
    if left_out:
        tree.notes.append(
            f"{len(left_out)} links in {origin} lead to folders that are there anyway or hold it, and were not "
            f"followed ({shown(left_out[0])})."
        )
    return tree


def _images(tree: _Tree, files: Iterable[str]) -> list[str]:
    """The images among files, sorted; the others are counted."""
    images = []
    for file in files:
        if is_image(file) and not is_hidden(file):
            images.append(file)
        else:
            tree.ignored += 1
    return sorted(images)


def _source_folder(origin: Path) -> tuple[list[str], Domain]:
    tree = _read_folder(origin)
    _check_in_folders(tree, origin)
    for folder, paths in tree.folders.items():
        if not paths:
            raise InputError(
                f"{origin / shown(folder)}: no image in the folder of this class: add some, or delete the folder "
                f"(images are {', '.join(IMAGE_SUFFIXES)})"
            )
    folders: dict[str, list[str]] = {}
    for folder in tree.folders:
        _check_class_name(folder, origin)
        folders.setdefault(_normal(folder), []).append(folder)
    classes = sorted(folders)
    if len(classes) < 2:
        inner = origin / shown(classes[0])
        raise InputError(
            f"{origin} holds one class folder alone, {inner.name}, and it takes two classes to learn: if the class "
            f"folders lie in it, name {inner}"
        )
    notes = list(tree.notes)
    notes += [
        f"{len(same)} folders in {origin} have the name {name} in different forms of Unicode: they make one class."
        for name, same in folders.items()
        if len(same) > 1
    ]
    alike: dict[str, str] = {}
    for name in classes:
        other = alike.setdefault(_folded(name), name)
        if other != name:
            notes.append(f'The classes "{other}" and "{name}" differ only in case or spaces; they are two classes.')
    images = [
        Image(path, label)
        for label, name in enumerate(classes)
        for path in sorted(path for folder in folders[name] for path in tree.folders[folder])
    ]
    return classes, _domain("source", origin, images, tree.ignored, notes)


def _check_in_folders(tree: _Tree, origin: Path) -> None:
    """Refuse a folder without class folders, or with images beside them."""
    if tree.loose:
        raise InputError(
            f"{origin} holds {len(tree.loose)} images that lie in no class folder, such as "
            f"{shown(Path(tree.loose[0]).name)}: put each class's images in a folder with its name"
        )
    if not tree.folders:
        raise InputError(f"{origin} holds no class folders: put each class's images in a folder with its name")


def _match(tree: _Tree, classes: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The folders that are named by classes, with their labels, and the others that hold images."""
    labels = {name: label for label, name in enumerate(classes)}
    known = {folder: labels[_normal(folder)] for folder in tree.folders if _normal(folder) in labels}
    known = {folder: label for folder, label in known.items() if tree.folders[folder]}
    unknown = [folder for folder, paths in tree.folders.items() if paths and folder not in known]
    return known, unknown


def _closest(folder: str, classes: Sequence[str], *, alike: bool = False) -> str:
    """` (did you mean "cup"?)`, or nothing; `alike` asks for a name that differs in case or spaces alone."""
    folded = {_folded(name): name for name in classes}
    near = get_close_matches(_folded(folder), folded, n=1, cutoff=1.0 if alike else 0.6)
    return f' (did you mean "{folded[near[0]]}"?)' if near else ""


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _folded(name: str) -> str:
    return " ".join(_normal(name).casefold().split())


# --- lists


def _read_labelled_list(path: Path, classes: int | None = None) -> list[Image]:
    """The images of a list with their labels, checked against the number of classes, where it is known."""
    entries = ImageList.read(_existing(path)).entries
    for entry in entries:
        if entry.label < 0 or (classes is not None and entry.label >= classes):
            upper = "" if classes is None else f" to {classes - 1}"
            raise InputError(f"{path}:{entry.line}: the label {entry.label} is no class: labels go from 0{upper}")
    paths = _locate([(entry.path, f"{path}:{entry.line}") for entry in entries], path)
    images = [Image(found, entry.label) for found, entry in zip(paths, entries, strict=True)]
    _check_paths(image.path for image in images)
    return images


def _existing(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if is_image(path.name):
        raise InputError(f"{path} is an image: name a folder of images, or a list of them")
    return path


def _locate(names: Iterable[tuple[str, str]], list_path: Path) -> list[str]:
    """The absolute paths of images that a list names; links to images keep their names.

    Args:
        names: each with the place that a message names.
    """
    resolved = cache(lambda folder: str(folder.resolve()))  # many images lie in one folder
    paths = []
    for name, where in names:
        try:
            found = find(name, list_path.parent)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        paths.append(os.path.join(resolved(found.parent), found.name))  # noqa: PTH118 - a str is wanted
    return paths


def _names_beside(origin: Path, count: int) -> tuple[list[str], list[str]]:
    """The classes' names for a list, and notes on where they come from."""
    beside = origin.with_name("labels.txt")
    numbers = [str(label) for label in range(count)]
    if not beside.is_file():
        return numbers, [f"The classes of {origin} are named by their numbers, as no labels.txt lies beside it."]
    names = read_labels(beside)
    if len(names) != count:
        return numbers, [
            f"The classes are named by their numbers, as {beside} names {len(names)} classes and {origin} has {count}."
        ]
    told = list(tell_apart(names))
    if told == names:
        return names, []
    alike = _few(sorted(set(names).difference(told)))
    return told, [f"Several classes of {beside} have one name ({alike}): each gets its number behind it."]


# --- domains


def _domain(role: str, origin: Path, images: Sequence[Image], ignored: int = 0, notes: Iterable[str] = ()) -> Domain:
    _check_paths(image.path for image in images)
    return Domain(role, origin, tuple(images), ignored, tuple(notes))


def _check_paths(paths: Iterable[str]) -> None:
    """Refuse paths that a list can't hold."""
    for path in paths:
        if "\n" in path:
            raise InputError(f"{shown(path)}: the name has a line break, which no list can hold: rename it")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InputError(f"{shown(path)}: the name is not UTF-8, as lists are: rename it") from None


def _check_class_name(name: str, origin: Path) -> None:
    if not name.strip() or len(name.splitlines()) > 1:
        raise InputError(
            f"{origin}: the class folder {name!a} is blank or has a line break, and labels.txt holds a name a "
            "line: rename it"
        )
    if has_control_character(name):
        raise InputError(f"{origin}: the name of the class folder {name!a} has a control character: rename it")


def _missing(role: str, images: Sequence[Image], classes: Sequence[str]) -> list[str]:
    """A note on the classes that a labelled domain has no images of."""
    present = {image.label for image in images}
    missing = [name for label, name in enumerate(classes) if label not in present]
    if not missing:
        return []
    why = "; AutoDIAL expects that both domains have the same classes" if role == "target" else ""
    return [f"The {role} has no images of {len(missing)} of {len(classes)} classes ({_few(missing)}){why}."]


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")


def _by_label(image: Image) -> tuple[int, str]:
    return image.label or 0, image.path
