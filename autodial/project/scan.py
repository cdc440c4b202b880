"""The images and classes of a domain, from class folders, other folders or lists."""

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
from autodial.project.labelled_files import read_labelled_files
from autodial.wording import counted

_NAMED = 5
"""The most names that a message lists."""


class LabelledImage(NamedTuple):
    """The path of an image and its label.

    Attributes:
        path: absolute, as in the lists of a project.
        label: the number of the image's class; None if it is unknown or not used.
    """

    path: str
    label: int | None


@dataclass(frozen=True)
class DomainImages:
    """The images of one domain.

    Attributes:
        role: "source", of several "source 1" and so on, "target", "labelled target" or "test".
        origin: the folder or list, as the user named it.
        images: in the list's order; those of a folder are sorted by class, then by path.
        ignored: the number of files in the folder that are hidden or not images.
        notes: sentences that the user should read.
    """

    role: str
    origin: Path
    images: tuple[LabelledImage, ...]
    ignored: int = 0
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The role with its article, in a sentence."""
        return self.role if self.role[-1].isdigit() else f"the {self.role}"

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


def read_source(origin: Path) -> tuple[list[str], DomainImages]:
    """Read the labelled images of the source, and the names of their classes.

    In a folder, each subfolder is a class, in order of their names; images may lie at any depth below it. Class names
    are in Unicode's normal form C, so that a folder copied from a Mac keeps its name. The classes of a list get their
    names from a labels.txt beside it if the number of names fits; otherwise their numbers are the names.

    Raises:
        InputError: the origin can't be read, has images outside of class folders, a class without images, a gap in
            the labels, or a name that no list can hold; the message names the folder or line.
    """
    if origin.is_dir():
        return _source_folder(origin)
    images = _read_labelled_list(origin)
    count = 1 + max(image.label or 0 for image in images)
    domain = DomainImages("source", origin, tuple(images))
    for label, number in enumerate(domain.counts(count)):
        if not number:
            raise InputError(
                f"{origin}: no image has label {label}, but labels go up to {count - 1}: number the classes from 0 "
                "without gaps"
            )
    if count < 2:
        raise InputError(f"{origin} has images of only one class: training needs at least two classes")
    names, notes = _names_beside(origin, count)
    return names, DomainImages("source", origin, domain.images, notes=tuple(notes))


def read_sources(origins: Sequence[Path]) -> tuple[list[str], list[DomainImages]]:
    """Read the labelled images of one or several sources, as `read_source` does, and the names of all classes.

    Sources share the classes of one name. A source may lack classes that another one has; it gets a note. The classes
    are those of all sources. They have the order of a source that has them all, so that the numbers in its list keep
    their meaning; without such a source, the order of their names.

    Raises:
        InputError: as `read_source`, or a source has no class in common with the first.
    """
    if len(origins) == 1:
        classes, source = read_source(origins[0])
        return classes, [source]
    found = [read_source(origin) for origin in origins]
    for origin, (names, _) in zip(origins[1:], found[1:], strict=True):
        if not set(names).intersection(found[0][0]):
            raise InputError(
                f"{origin} ({_few(names)}) and {origins[0]} ({_few(found[0][0])}) have no class in common: give "
                "classes one name in all sources, in a list's labels.txt too"
            )
    everything = {name for names, _ in found for name in names}
    classes = next((names for names, _ in found if len(names) == len(everything)), sorted(everything))
    numbers = {name: number for number, name in enumerate(classes)}
    sources = []
    for number, (names, domain) in enumerate(found, 1):
        images = [LabelledImage(path, numbers[names[label or 0]]) for path, label in domain.images]
        lacking = [name for name in classes if name not in names]
        note = f"Source {number} ({domain.origin}) has no images of {len(lacking)} of the {len(classes)} classes"
        notes = [*domain.notes, *([f"{note} ({_few(lacking)})"] if lacking else [])]
        ordered = images if names == classes else sorted(images, key=_by_label)
        sources.append(DomainImages(f"source {number}", domain.origin, tuple(ordered), domain.ignored, tuple(notes)))
    return classes, sources


def pooled(sources: Sequence[DomainImages]) -> DomainImages:
    """The images of all sources as one domain, which messages call by the names of all."""
    if len(sources) == 1:
        return sources[0]
    origin = Path(", ".join(str(source.origin) for source in sources))
    return DomainImages("source", origin, tuple(image for source in sources for image in source.images))


def read_target(origin: Path, classes: Sequence[str], *, measured: bool) -> DomainImages:
    """Read the images of the target domain, whose labels training does not use.

    Labels are kept only to measure accuracy, if there is no test set and the folder consists of class folders with the
    source's names. Otherwise all images in a folder count as unlabelled, and so do those of a list, whose labels may
    be placeholders.

    Args:
        classes: the names of the source's classes.
        measured: whether a test set measures accuracy.

    Raises:
        InputError: the origin can't be read, has no images, or has a name that no list can hold. Unless `measured`,
            also: some class folders have names of the source's classes, and other folders or images lie beside them.
    """
    if not origin.is_dir():
        paths = _locate([(name, str(origin)) for name in read_paths(_existing(origin))], origin)
        if not paths:
            raise InputError(f"{origin} lists no images: write one path per line")
        return _domain("target", origin, [LabelledImage(path, None) for path in paths])
    tree = _read_folder(origin)
    known, unknown = _match(tree, classes)
    notes = list(tree.notes)
    if not measured and known:
        if unknown or tree.loose:
            other = f"the folder {unknown[0]}{_closest(unknown[0], classes)}" if unknown else Path(tree.loose[0]).name
            raise InputError(
                f"{origin} has folders named like the source's classes, but also contains {other}, which is not a "
                "source class: rename it, move it away, or name labelled images with `test`"
            )
        images = [LabelledImage(path, label) for folder, label in known.items() for path in tree.folders[folder]]
        notes += _missing("target", images, classes)
        return _domain("target", origin, sorted(images, key=_by_label), tree.ignored, notes)
    if not measured and (near := [folder for folder in unknown if _closest(folder, classes, alike=True)]):
        raise InputError(
            f"{origin} has a folder {near[0]}{_closest(near[0], classes, alike=True)}: folder names must match the "
            "source's classes exactly"
        )
    if unknown:
        notes.append(
            f"The folders in {origin} ({_few(unknown)}) are not source classes; their images count as unlabelled"
        )
    paths = sorted([*tree.loose, *(path for folder in tree.folders.values() for path in folder)])
    if not paths:
        raise InputError(f"{origin} contains no images at any depth (images end in {', '.join(IMAGE_SUFFIXES)})")
    return _domain("target", origin, [LabelledImage(path, None) for path in paths], tree.ignored, notes)


def read_test(origin: Path, classes: Sequence[str]) -> DomainImages:
    """Read the labelled images that measure accuracy.

    Args:
        classes: the names of the source's classes.

    Raises:
        InputError: the origin can't be read, or has no images, images outside of class folders, a class that the
            source lacks, or a name that no list can hold.
    """
    if not origin.is_dir():
        images = _read_labelled_list(origin, len(classes))
        notes = [*_on_numbers(origin, classes), *_missing("test", images, classes)]
        return _domain("test", origin, images, notes=notes)
    return _read_class_folders("test", origin, classes)


def read_labelled_target(origin: Path, classes: Sequence[str]) -> DomainImages:
    """Read the target images whose labels are trained on.

    The origin is a folder with class folders; a list, in which a line's label is the number of a class or its name; or
    a table in CSV with the columns path and label, in which a label is the name of a class, or its number if no class
    has that name. In a table, rows without a label are left out.

    Args:
        classes: the names of the source's classes.

    Raises:
        InputError: the origin can't be read, has no images, images outside of class folders, a label that is no class
            of the source, an image with two labels, or a name that no list can hold.
    """
    role = "labelled target"
    if origin.is_dir():
        domain = _read_class_folders(role, origin, classes)
        folders = [str(Path(image.path).parent) for image in domain.images]
        _check_one_label_each(domain.images, classes, [str(origin)] * len(folders), folders)
        return domain
    labels, skipped = read_labelled_files(_existing(origin), classes)
    paths = _locate([(label.path, f"{origin}:{label.line}") for label in labels], origin)
    images = [LabelledImage(path, label.label) for path, label in zip(paths, labels, strict=True)]
    lines = [label.line for label in labels]
    _check_one_label_each(images, classes, [f"{origin}:{line}" for line in lines], [f"line {line}" for line in lines])
    notes = [f"{counted(skipped, 'row')} of {origin} without a label {'is' if skipped == 1 else 'are'} left out"]
    told = [*(notes if skipped else []), *_on_numbers(origin, classes), *_missing(role, images, classes)]
    return _domain(role, origin, images, notes=told)


def _check_one_label_each(
    images: Sequence[LabelledImage], classes: Sequence[str], where: Sequence[str], places: Sequence[str]
) -> None:
    """Refuse a file with several labels, under any name.

    Args:
        where: how a message about each image begins.
        places: where a message about another image says that each image is.
    """
    seen: dict[tuple[int, int], tuple[int, str]] = {}
    for image, start, place in zip(images, where, places, strict=True):
        label, before = seen.setdefault(identity(image.path), (image.label or 0, place))
        if label != image.label:
            raise InputError(
                f'{start}: {shown(image.path)} has the label "{classes[image.label or 0]}" here, and '
                f'"{classes[label]}" in {before}: keep the right one'
            )


def _read_class_folders(role: str, origin: Path, classes: Sequence[str]) -> DomainImages:
    """Read labelled images from folders with names of the source's classes."""
    tree = _read_folder(origin)
    _check_in_folders(tree, origin)
    known, unknown = _match(tree, classes)
    if unknown:
        raise InputError(
            f"{origin}: the folder {unknown[0]} is not a source class{_closest(unknown[0], classes)}: rename it or "
            "move it away"
        )
    images = [LabelledImage(path, label) for folder, label in known.items() for path in tree.folders[folder]]
    if not images:
        raise InputError(f"{origin} has no images in folders named like the source's classes ({_few(classes)})")
    notes = [*tree.notes, *_missing(role, images, classes)]
    return _domain(role, origin, sorted(images, key=_by_label), tree.ignored, notes)


def shown(name: str) -> str:
    """A path or name on one line, whatever its bytes, for messages."""
    return name if name.isprintable() else ascii(name)


# --- folders


@dataclass
class _Tree:
    """A folder's images by subfolder, its images in no subfolder, the number of other files, and notes."""

    folders: dict[str, list[str]]
    loose: list[str]
    ignored: int
    notes: list[str]


def _read_folder(origin: Path) -> _Tree:
    """Read everything in a folder, with absolute paths."""
    top = origin.resolve()
    try:
        names = sorted(path.name for path in top.iterdir())
    except OSError as error:
        raise InputError(f"{origin}: can't list this folder: {error.strerror}") from None
    inner = {name: identity(top / name) for name in names if (top / name).is_dir() and not is_hidden(name)}
    above = {identity(folder) for folder in (top, *top.parents)}
    for i, name in enumerate(inner):
        if inner[name] in above:
            raise InputError(f"{origin / shown(name)} is a link to a folder that contains it: remove the link")
        for other in list(inner)[:i]:
            if inner[name] == inner[other]:
                raise InputError(
                    f"{origin}: {shown(other)} and {shown(name)} are two names of one folder: remove the link"
                )
    files = {name for name in names if name not in inner and not (top / name).is_dir()}
    tree = _Tree({}, [], 0, [])
    tree.loose = _images(tree, (str(top / name) for name in sorted(files)))
    left_out: list[str] = []
    for name, own in inner.items():
        # a link to another class, or to a folder that contains it, must not bring images to the wrong class
        without = above.union(inner.values()) - {own}
        tree.folders[name] = _images(tree, walk(top / name, without=without, skipped=left_out.append))
    if left_out:
        tree.notes.append(
            f"{counted(len(left_out), 'link')} in {origin} to folders that are read anyway, or that contain it, "
            f"{'was' if len(left_out) == 1 else 'were'} not followed ({shown(left_out[0])})"
        )
    return tree


def _images(tree: _Tree, files: Iterable[str]) -> list[str]:
    """The images among files, sorted; other files are counted."""
    images = []
    for file in files:
        if is_image(file) and not is_hidden(file):
            images.append(file)
        else:
            tree.ignored += 1
    return sorted(images)


def _source_folder(origin: Path) -> tuple[list[str], DomainImages]:
    tree = _read_folder(origin)
    _check_in_folders(tree, origin)
    for folder, paths in tree.folders.items():
        if not paths:
            raise InputError(
                f"{origin / shown(folder)}: this class folder has no images: add some, or delete the folder "
                f"(images end in {', '.join(IMAGE_SUFFIXES)})"
            )
    folders: dict[str, list[str]] = {}
    for folder in tree.folders:
        _check_class_name(folder, origin)
        folders.setdefault(_normal(folder), []).append(folder)
    classes = sorted(folders)
    if len(classes) < 2:
        inner = origin / shown(classes[0])
        raise InputError(
            f"{origin} contains only one class folder, {inner.name}, and training needs at least two classes: if the "
            f"class folders lie inside it, name {inner}"
        )
    notes = list(tree.notes)
    notes += [
        f"{len(same)} folders in {origin} have the name {name} in different Unicode forms, and make one class"
        for name, same in folders.items()
        if len(same) > 1
    ]
    alike: dict[str, str] = {}
    for name in classes:
        other = alike.setdefault(_folded(name), name)
        if other != name:
            notes.append(f'The classes "{other}" and "{name}" differ only in case or spaces, and stay two classes')
    images = [
        LabelledImage(path, label)
        for label, name in enumerate(classes)
        for path in sorted(path for folder in folders[name] for path in tree.folders[folder])
    ]
    return classes, _domain("source", origin, images, tree.ignored, notes)


def _check_in_folders(tree: _Tree, origin: Path) -> None:
    """Refuse a folder that has no class folders, or images outside of them."""
    if tree.loose:
        raise InputError(
            f"{origin} contains {counted(len(tree.loose), 'image')} outside of class folders, such as "
            f"{shown(Path(tree.loose[0]).name)}: put the images of each class into a folder with the class's name"
        )
    if not tree.folders:
        raise InputError(
            f"{origin} contains no class folders: put the images of each class into a folder with the class's name"
        )


def _match(tree: _Tree, classes: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The folders with a class's name, with their labels, and the other folders with images."""
    labels = {name: label for label, name in enumerate(classes)}
    known = {folder: labels[_normal(folder)] for folder in tree.folders if _normal(folder) in labels}
    known = {folder: label for folder, label in known.items() if tree.folders[folder]}
    unknown = [folder for folder, paths in tree.folders.items() if paths and folder not in known]
    return known, unknown


def _closest(folder: str, classes: Sequence[str], *, alike: bool = False) -> str:
    """` (did you mean "cup"?)`, or nothing; with `alike`, the names may differ only in case or spaces."""
    folded = {_folded(name): name for name in classes}
    near = get_close_matches(_folded(folder), folded, n=1, cutoff=1.0 if alike else 0.6)
    return f' (did you mean "{folded[near[0]]}"?)' if near else ""


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _folded(name: str) -> str:
    return " ".join(_normal(name).casefold().split())


# --- lists


def _read_labelled_list(path: Path, classes: int | None = None) -> list[LabelledImage]:
    """Read a list with labels, which are checked against the number of classes if it is known."""
    entries = ImageList.read(_existing(path)).entries
    for entry in entries:
        if entry.label < 0 or (classes is not None and entry.label >= classes):
            upper = "" if classes is None else f" to {classes - 1}"
            raise InputError(f"{path}:{entry.line}: the label {entry.label} is not a class: labels go from 0{upper}")
    paths = _locate([(entry.path, f"{path}:{entry.line}") for entry in entries], path)
    images = [LabelledImage(found, entry.label) for found, entry in zip(paths, entries, strict=True)]
    _check_paths(image.path for image in images)
    return images


def _existing(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if is_image(path.name):
        raise InputError(f"{path} is an image: name a folder of images, or a list of them")
    return path


def _locate(names: Iterable[tuple[str, str]], list_path: Path) -> list[str]:
    """Make the paths in a list absolute; links to images keep their names.

    Args:
        names: paths, each with its place for messages.
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
    """The names of a list's classes, and notes on where they come from."""
    beside = origin.with_name("labels.txt")
    numbers = [str(label) for label in range(count)]
    if not beside.is_file():
        return numbers, [f"No labels.txt lies beside {origin}, so that numbers are the names of its classes"]
    names = read_labels(beside)
    if len(names) != count:
        return numbers, [
            f"{beside} names {len(names)} classes, but {origin} has {count}, so that numbers are the classes' names"
        ]
    told = list(tell_apart(names))
    if told == names:
        return names, []
    alike = _few(sorted(set(names).difference(told)))
    return told, [f"Several classes in {beside} have the same name ({alike}): their numbers are appended"]


# --- domains


def _domain(
    role: str, origin: Path, images: Sequence[LabelledImage], ignored: int = 0, notes: Iterable[str] = ()
) -> DomainImages:
    _check_paths(image.path for image in images)
    return DomainImages(role, origin, tuple(images), ignored, tuple(notes))


def _check_paths(paths: Iterable[str]) -> None:
    """Refuse paths that a list can't hold."""
    for path in paths:
        if "\n" in path:
            raise InputError(f"{shown(path)}: the name has a line break, which lists can't hold: rename it")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InputError(f"{shown(path)}: the name is not UTF-8, the encoding of lists: rename it") from None


def _check_class_name(name: str, origin: Path) -> None:
    if not name.strip() or len(name.splitlines()) > 1:
        raise InputError(
            f"{origin}: the name of the class folder {name!a} is blank or has a line break, which labels.txt can't "
            "hold: rename it"
        )
    if has_control_character(name):
        raise InputError(f"{origin}: the name of the class folder {name!a} has a control character: rename it")


def _missing(role: str, images: Sequence[LabelledImage], classes: Sequence[str]) -> list[str]:
    """A note on classes without images in a labelled domain."""
    present = {image.label for image in images}
    missing = [name for label, name in enumerate(classes) if label not in present]
    if not missing:
        return []
    why = "; AutoDIAL expects the same classes in both domains" if role == "target" else ""
    return [f"The {role} has no images of {len(missing)} of the {len(classes)} classes ({_few(missing)}){why}"]


def _on_numbers(origin: Path, classes: Sequence[str]) -> list[str]:
    """A note on a list where classes are called by numbers that are not their places, as "10" in front of "2"."""
    odd = next((place for place, name in enumerate(classes) if name.isdecimal() and name != str(place)), None)
    if odd is None or origin.suffix.lower() == ".csv":
        return []
    return [f'A number in {origin} is a place in labels.txt, from 0, and no name: {odd} means class "{classes[odd]}"']


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")


def _by_label(image: LabelledImage) -> tuple[int, str]:
    return image.label or 0, image.path
