"""Adapt torchvision's ResNet-18 to a target domain and export it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import cv2
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18

from autodial.converters import AutoDIAL, convert_batchnorm, export_module, parameter_groups, recalibrate
from autodial.errors import AutodialError, InputError
from autodial.layers import EntropyLoss

SIZE, BATCH = 224, 16
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Images(Dataset[tuple[Tensor, int]]):
    """Image files as `autodial predict` prepares them: stretched to SIZE by OpenCV, then torchvision's mean and std."""

    def __init__(self, folder: Path, classes: list[str]) -> None:
        self.paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
        self.classes = classes
        if len(self.paths) < BATCH:
            raise InputError(f"{folder} has {len(self.paths)} images, and a batch takes {BATCH}: add some")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        image = cv2.resize(cv2.imread(str(path), cv2.IMREAD_COLOR_RGB), (SIZE, SIZE))
        pixels = torch.from_numpy(image).permute(2, 0, 1) / 255
        label = path.parent.name
        return (pixels - MEAN) / STD, self.classes.index(label) if label in self.classes else -1


def forever(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[list[Tensor]]:
    """The loader's batches, shuffled again whenever it ends."""
    while True:
        yield from loader


def main(source: Path, target: Path, output: str, epochs: int) -> None:
    classes = sorted(path.name for path in source.glob("*") if path.is_dir())
    sources, targets = Images(source, classes), Images(target, classes)
    source_loader, target_loader = (
        DataLoader(some, BATCH, shuffle=True, drop_last=True) for some in (sources, targets)
    )

    model = resnet18()  # weights="DEFAULT" starts from ImageNet, where there is a network
    model.fc = nn.Linear(model.fc.in_features, len(classes))
    net = AutoDIAL(convert_batchnorm(model))
    optimizer = torch.optim.SGD(parameter_groups(net), lr=1e-2, momentum=0.9, weight_decay=5e-4)
    entropy = EntropyLoss()
    target_batches = forever(target_loader)
    for epoch in range(epochs):
        for images, labels in source_loader:
            source_scores, target_scores = net(images, next(target_batches)[0])
            loss = F.cross_entropy(source_scores, labels) + 0.1 * entropy(target_scores)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}")

    recalibrate(net, DataLoader(sources, BATCH), DataLoader(targets, BATCH))
    export_module(
        net.module,
        output,
        size=(SIZE, SIZE),
        mean=tuple(MEAN.flatten().tolist()),
        std=tuple(STD.flatten().tolist()),
        classes=classes,
    )
    print(f"wrote {output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a folder with a folder of images per class")
    parser.add_argument("target", type=Path, help="a folder of images, at any depth; their labels are not used")
    parser.add_argument("output", metavar="OUT.onnx")
    parser.add_argument("--epochs", type=int, default=10)
    try:
        main(**vars(parser.parse_args()))
    except AutodialError as error:
        parser.error(str(error))
