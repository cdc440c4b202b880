"""The forks of Caffe whose files are read and written: a module and a .proto for each.

Text names each field, so that the messages of all forks can be one schema (schema.py), in which fields whose numbers
clash have numbers of their own. In binary files (wire.py) the layer's type says which fork's field a number is.
"""

from __future__ import annotations

from autodial.proto.dialects import (
    augmentation,
    batch_normalization,
    brelu,
    bvlc_master,
    c3d,
    caffe_3d,
    ceil_mode,
    conv_lstm,
    deconvnet,
    deeplab,
    deformable,
    enet,
    face,
    fcn,
    flownet2,
    focal_loss,
    foreign,
    grl,
    group_norm,
    hrsod,
    intel,
    latent_domains,
    mscnn,
    nvcaffe,
    opencv,
    openpose,
    proposal,
    pspnet,
    rcnn,
    refinedet,
    rfcn,
    ristretto,
    segnet,
    sequences,
    several_sources,
    shufflenet,
    ssd,
    textboxes,
    tsn,
    waifu2x,
    xlearn,
    yolo,
)
from autodial.proto.dialects.dialect import Dialect

CAFFE = Dialect(
    "",
    {
        "log_param": ("Log",),
        "embed_param": ("Embed",),
        "tile_param": ("Tile",),
        "input_param": ("Input",),
        "crop_param": ("Crop",),
        "parameter_param": ("Parameter",),
        "recurrent_param": ("RNN", "LSTM", "ConvLSTM"),
        "dial_param": ("Dial",),
    },
)
"""Caffe itself, with those of its fields whose numbers forks have used for something else."""

FORKS = tuple(
    module.DIALECT
    for module in (
        bvlc_master, ceil_mode, ssd, fcn, rcnn, rfcn, pspnet, deeplab, segnet, enet, yolo, shufflenet, proposal, xlearn,
        grl, latent_domains, openpose, tsn, face, nvcaffe, intel, refinedet, flownet2, ristretto, deformable,
        focal_loss, batch_normalization, augmentation, several_sources, deconvnet, c3d,
        sequences, waifu2x, mscnn, textboxes, brelu, caffe_3d, opencv, group_norm, hrsod, conv_lstm, foreign,
    )
)  # fmt: skip
"""Where several could have written a field, the first is taken."""

DIALECTS = (CAFFE, *FORKS)

__all__ = ["CAFFE", "DIALECTS", "FORKS", "Dialect"]
