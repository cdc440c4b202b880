"""The domains that a net finds among its source's images, and the part of the net that tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autodial.errors import InputError
from autodial.evaluation.domains import data_in_train, file_options, has_latent_domains
from autodial.layers import layer_class
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.report.images import Thumbnail


@dataclass(frozen=True)
class LatentDomains:
    """How a net divides images of its source among latent domains.

    Attributes:
        weights: (N images, K domains), each row's sum is 1.
        total: the number of the source's images, of which N were run.
        images: of each domain, images with large weights in it, the largest first.
    """

    weights: NDArray[np.float32]
    total: int
    images: Sequence[Sequence[Thumbnail]]

    @property
    def shares(self) -> list[float]:
        """The mean weight of each domain."""
        return [float(share) for share in self.weights.mean(0)]

    @property
    def counts(self) -> list[int]:
        """The number of images that belong to each domain most."""
        largest = self.weights.argmax(1)
        return [int((largest == domain).sum()) for domain in range(self.weights.shape[1])]


def count_domains(net: pb.NetParameter) -> int:
    """The number of latent domains that a NetParameter finds; 0 if it has Dial layers or none at all."""
    layers = [layer for layer in net.layer if layer.type == "MultiModalBatchNorm"]
    return len({layer.bottom[1] for layer in layers}) if has_latent_domains(net) else 0


@dataclass(frozen=True)
class DomainNet:
    """The layers of a TRAIN phase that predict the weights of the source's images in latent domains.

    Attributes:
        param: these layers, with Input layers for what they read.
        images: the blob of the source's images.
        weights: the blobs of weights, one for each domain.
    """

    param: pb.NetParameter
    images: str
    weights: Sequence[str]


def domain_net(net: pb.NetParameter, shape: Sequence[int]) -> DomainNet:
    """The part of a NetParameter's TRAIN phase that tells latent domains apart.

    Args:
        net: the net.
        shape: the shape of an image, (C, H, W).

    Raises:
        InputError: the net has no latent domains, or no data layer of the source's images in front of them.
    """
    graph = Graph(filter_net(net, pb.TRAIN).layer)
    norms = [node for node in graph.nodes if node.param.type == "MultiModalBatchNorm"]
    weights = list(dict.fromkeys(node.bottoms[1] for node in norms))
    data = data_in_train(net)
    needed = graph.ancestors(*weights)
    read = {value for node in needed for value in node.bottoms}
    for node in needed:
        if layer_class(node.param.type).is_data:
            value = next(value for value in node.tops if value in read)
            graph.feed(value, (file_options(node.param).batch_size, *shape))
    param = graph.net(net.name, *weights)
    if data is None or not any(data.sources[0].blob in layer.top for layer in param.layer):
        raise InputError("the weights of the latent domains do not depend on a data layer of the source's images")
    return DomainNet(param, data.sources[0].blob, [graph.names[value] for value in weights])
